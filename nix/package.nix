# The program. Without `cuda` nothing of CUDA is in its closure: it looks for a
# host's libraries by itself. With them it finds the store's, and only the driver's
# libraries are the host's.
{
  lib,
  rustPlatform,
  makeWrapper,
  revision,
  # Not `cudaPackages`: callPackage would fill that in by itself.
  cuda ? null,
}:

let
  manifest = lib.importTOML ../Cargo.toml;
  withCuda = cuda != null;

  cudaLibraries = lib.makeLibraryPath (
    map (name: cuda.${name}) [
      "cuda_cudart"
      "cuda_nvrtc"
      "libcublas"
      "cudnn"
      "nccl"
    ]
  );

  # The driver's libraries belong to the kernel module that is loaded: on NixOS they
  # stand in /run/opengl-driver/lib; elsewhere those of the host are linked, by name,
  # into a folder of their own (the whole of /usr/lib would mix two C libraries).
  findDriver = ''
    if [ -d /run/opengl-driver/lib ]; then
      driver=/run/opengl-driver/lib
    else
      driver=''${XDG_RUNTIME_DIR:-/tmp}/ablation-driver-$(id -u)
      mkdir -p -m 700 "$driver"
      for folder in /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64 /usr/lib/wsl/lib; do
        for library in "$folder"/libcuda.so* "$folder"/libnvidia-ml.so* "$folder"/libnvidia-ptxjitcompiler.so* \
          "$folder"/libnvidia-nvvm*.so* "$folder"/libnvidia-gpucomp*.so*; do
          if [ -e "$library" ]; then ln -sfn "$library" "$driver/''${library##*/}"; fi
        done
      done
    fi
    export LD_LIBRARY_PATH="$driver''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  '';
in
rustPlatform.buildRustPackage {
  pname = if withCuda then "ablation-cuda" else "ablation";
  inherit (manifest.package) version;

  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../Cargo.toml
      ../Cargo.lock
      ../README.md
      ../build.rs
      ../examples
      ../experiments
      ../reports/plan
      ../reports/yarn/losses.parquet
      ../rustfmt.toml
      ../src
      ../tests
    ];
  };

  # Every crate is from the Rust registry, so that no hash is needed here.
  cargoLock.lockFile = ../Cargo.lock;

  nativeBuildInputs = lib.optionals withCuda [ makeWrapper ];

  # The sources come without .git: the flake says what they are.
  env.ABLATION_REVISION = revision;

  postFixup = lib.optionalString withCuda ''
    wrapProgram $out/bin/ablation \
      --prefix LD_LIBRARY_PATH : ${cudaLibraries} \
      --run ${lib.escapeShellArg findDriver}
  '';

  meta = {
    inherit (manifest.package) description;
    mainProgram = "ablation";
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    platforms = lib.platforms.linux;
  };
}
