//! Reading a header that may not be there yet.

/// Why a header could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The bytes end too early.
    Short,
    /// No bytes that follow could make it right.
    Bad(&'static str),
}

/// Byte order of a TIFF structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `II`.
    Little,
    /// `MM`.
    Big,
}

impl Order {
    /// 16 bits.
    pub fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    /// 32 bits.
    pub fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// A position in bytes, which may lie beyond their end.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// All bytes.
    pub data: &'a [u8],
    /// Where the next read starts.
    pub at: usize,
}

impl<'a> Reader<'a> {
    /// From `at` on.
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Reader { data, at }
    }

    /// The next `size` bytes.
    pub fn take(&mut self, size: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(size).ok_or(Stop::Short)?;
        let found = self.data.get(self.at..end).ok_or(Stop::Short)?;
        self.at = end;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        self.take(N)?.try_into().map_err(|_| Stop::Short)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Stop> {
        Ok(self.array::<1>()?[0])
    }

    /// 16 bits.
    pub fn u16(&mut self, order: Order) -> Result<u16, Stop> {
        Ok(order.u16(self.array()?))
    }

    /// 32 bits.
    pub fn u32(&mut self, order: Order) -> Result<u32, Stop> {
        Ok(order.u32(self.array()?))
    }
}
