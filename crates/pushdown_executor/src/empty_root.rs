//! Leaving the host's file system, in a namespace of mounts of this process's own: its root is an empty folder from then on, which nobody
//! can write. Then the process gives up the rights that it had within its namespaces.

#![allow(unsafe_code)]

use std::ffi::CStr;

use bare::system_call::{Errno, system_call};

/// A folder that is there, since the kernel's list of mappings was read in it.
const FOLDER: &CStr = c"/proc";
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Enters the empty root, without rights.
///
/// # Errors
/// Of the operating system.
pub(crate) fn enter() -> Result<(), Errno> {
    let none = c"none".as_ptr() as usize;
    let (root, folder, here) = (c"/".as_ptr() as usize, FOLDER.as_ptr() as usize, c".".as_ptr() as usize);
    let private = (libc::MS_REC | libc::MS_PRIVATE) as usize;
    let empty = (libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC) as usize;
    let (kind, bounds) = (c"tmpfs".as_ptr() as usize, c"size=4k,nr_inodes=1,mode=555".as_ptr() as usize);
    // SAFETY: the kernel reads static strings and two structures. No memory of this process is part of a file.
    unsafe {
        system_call(libc::SYS_mount, [none, root, 0, private, 0])?;
        system_call(libc::SYS_mount, [none, folder, kind, empty, bounds])?;
        system_call(libc::SYS_chdir, [folder])?;
        // The old root comes to lie over the new one, and is taken off.
        system_call(libc::SYS_pivot_root, [here, here])?;
        system_call(libc::SYS_umount2, [here, libc::MNT_DETACH as usize])?;
        system_call(libc::SYS_chdir, [root])?;
        let (header, rights) = ([CAPABILITY_VERSION, 0_u32], [0_u32; 6]);
        system_call(libc::SYS_capset, [header.as_ptr() as usize, rights.as_ptr() as usize]).map(|_| ())
    }
}
