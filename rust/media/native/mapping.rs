//! A new file in shared memory, mapped for writing.

use std::fs::{remove_file, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memmap2::MmapMut;

/// Make a file of `size` bytes and let `fill` write it. It is gone again unless `fill` says to keep it.
///
/// All of its space is taken before it is mapped: a file system that is full is an error here, where writing to a mapping
/// without space behind it would end the process. Engines may run as another user, who is to read it.
#[allow(unsafe_code)]
pub fn create<T>(path: &Path, size: usize, fill: impl FnOnce(&mut [u8]) -> (bool, T)) -> io::Result<T> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(path)?;
    let result = reserve(&file, size).and_then(|()| {
        // SAFETY: the file is new, has a name that nobody was told, and is not shortened while this mapping exists.
        let mut map = unsafe { MmapMut::map_mut(&file) }?;
        Ok(fill(&mut map))
    });
    match result {
        Ok((true, value)) => Ok(value),
        Ok((false, value)) => remove_file(path).map(|()| value),
        Err(error) => {
            let _ = remove_file(path);
            Err(error)
        }
    }
}

#[cfg(target_os = "linux")]
fn reserve(file: &File, size: usize) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size as u64)?)
}

/// Elsewhere there is no shared-memory file system to fill up.
#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, size: usize) -> io::Result<()> {
    file.set_len(size as u64)
}
