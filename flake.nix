{
  description = "Trains Qwen3 models on very long sequences, one technique at a time, and shows what each costs";

  inputs = {
    # Pinned by flake.lock. Not nixos-unstable: from rustc 1.96 on nixpkgs' Rust (LLVM 21)
    # can't compile candle-core 0.11's AVX-512 VNNI code. Not 25.05: its Rust is too old
    # for edition 2024 as this crate uses it (1.95).
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
  };

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      each = f: lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system} system);

      # CUDA's and cuDNN's licences are the only unfree ones that are let in, and only for
      # the package that asks for them.
      cudaPkgs =
        system:
        import nixpkgs {
          inherit system;
          config.allowUnfreePredicate =
            pkg:
            builtins.all (
              licence:
              licence.free or false
              || builtins.elem (licence.shortName or "") [
                "CUDA EULA"
                "cuDNN EULA"
              ]
            ) (lib.toList (pkg.meta.license or [ ]));
        };

      # What was built, a dirty tree said to be dirty.
      # (A lock file that is overridden and not written leaves neither: then the hash of the sources.)
      revision = self.rev or self.dirtyRev or self.narHash or "unknown";

      app = package: {
        type = "app";
        program = lib.getExe package;
        meta.description = package.meta.description;
      };
    in
    {
      packages = each (
        pkgs: system: rec {
          default = ablation;
          ablation = pkgs.callPackage ./nix/package.nix { inherit revision; };
          ablation-cuda =
            let
              withCuda = cudaPkgs system;
            in
            withCuda.callPackage ./nix/package.nix {
              inherit revision;
              cuda = withCuda.cudaPackages_13 or withCuda.cudaPackages;
            };
        }
      );

      apps = each (
        _: system: rec {
          default = ablation;
          ablation = app self.packages.${system}.ablation;
          ablation-cuda = app self.packages.${system}.ablation-cuda;
        }
      );

      devShells = each (
        pkgs: system: {
          default = pkgs.mkShell {
            inputsFrom = [ self.packages.${system}.ablation ];
            packages = [
              pkgs.cargo
              pkgs.clippy
              pkgs.rust-analyzer
              pkgs.rustc
              pkgs.rustfmt
            ];
          };
        }
      );

      checks = each (
        pkgs: system:
        let
          package = self.packages.${system}.ablation;
        in
        {
          # Builds and runs the tests.
          ablation = package;
          format = package.overrideAttrs (old: {
            nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [ pkgs.rustfmt ];
            buildPhase = "cargo fmt --check";
            checkPhase = "";
            installPhase = "touch $out";
            postFixup = "";
          });
          clippy = package.overrideAttrs (old: {
            nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [ pkgs.clippy ];
            buildPhase = "cargo clippy --release --offline --locked --all-targets -- -D warnings";
            checkPhase = "";
            installPhase = "touch $out";
            postFixup = "";
          });
        }
      );

      formatter = each (pkgs: _: pkgs.nixfmt-tree);
    };
}
