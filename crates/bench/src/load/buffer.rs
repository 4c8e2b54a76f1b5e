//! Buffers for direct transfers.

/// Devices require addresses that are multiples of their block size; none has larger blocks.
const ALIGNMENT: usize = 4096;

/// A buffer whose address is a multiple of 4096.
pub(super) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    pub fn new(length: usize) -> Buffer {
        let memory = vec![0; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Buffer { memory, start, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}
