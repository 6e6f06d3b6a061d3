//! The memory of the machine, and how much of it this process may have.

use sysinfo::{MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, System};

/// Memory of the host, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// Of the machine.
    pub total: u64,
    /// That no process uses, or that the system can take back.
    pub available: u64,
    /// That the process's control group may have, where it has less than the machine.
    pub cgroup: Option<u64>,
}

impl HostMemory {
    /// As the system tells it now; none where it doesn't.
    pub fn here() -> Option<HostMemory> {
        let mut system = System::new();
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let pid = sysinfo::get_current_pid().ok();
        if let Some(pid) = pid {
            system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, ProcessRefreshKind::nothing());
        }
        // Its own group with all above it; in a container that shows only its own, that.
        let own = pid.and_then(|pid| system.process(pid)?.cgroup_limits());
        let total = system.total_memory();
        let cgroup = own.or_else(|| system.cgroup_limits()).map(|limits| limits.total_memory);
        let known = HostMemory { total, available: system.available_memory(), cgroup: cgroup.filter(|c| *c < total) };
        (total > 0).then_some(known)
    }

    /// What may be planned with where nothing else is said: nine tenths of the most that this
    /// process may have.
    pub fn usable(&self) -> u64 {
        self.limit() / 10 * 9
    }

    /// The most that this process may have.
    pub fn limit(&self) -> u64 {
        self.cgroup.unwrap_or(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_smaller_of_machine_and_group() {
        let memory = HostMemory { total: 100, available: 50, cgroup: Some(30) };
        assert_eq!(memory.limit(), 30);
        assert_eq!(HostMemory { cgroup: None, ..memory }.limit(), 100);
        #[cfg(target_os = "linux")]
        assert!(HostMemory::here().is_some_and(|here| here.limit() >= 1 << 26 && here.available <= here.total));
    }
}
