//! What device code calls of the system: `vprintf`, `__assertfail`, `malloc` and `free`, whose arguments lie in local
//! memory. Lanes are served one after the other, lowest first.
//!
//! Source: [PTX
//! Interoperability](https://docs.nvidia.com/cuda/ptx-writers-guide-to-interoperability/index.html#system-calls).

use super::access::write;
use super::step::Flow;
use super::{Cpu, Site};
use crate::machine::access::Access;
use crate::machine::fault::{FaultKind, OrFault};
use crate::machine::format::{Count, Form, Piece, pieces};
use crate::machine::lanes::Lanes;
use crate::machine::lock::lock;
use crate::machine::types::Space;

/// Most bytes of a string.
const LONGEST: usize = 1 << 20;

/// A function of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SystemCall {
    Printf,
    AssertFail,
    Malloc,
    Free,
}

impl SystemCall {
    /// The function of a name, with the bytes of its result and of its parameters.
    pub(crate) fn named(name: &str) -> Option<(SystemCall, &'static [u64], &'static [u64])> {
        Some(match name {
            "vprintf" => (SystemCall::Printf, &[4], &[8, 8]),
            "__assertfail" => (SystemCall::AssertFail, &[], &[8, 8, 4, 8, 8]),
            "malloc" => (SystemCall::Malloc, &[8], &[8]),
            "free" => (SystemCall::Free, &[], &[8]),
            _ => return None,
        })
    }
}

/// A packed list of arguments, as a lane reads it.
struct Arguments {
    lane: usize,
    next: u64,
    taken: u32,
}

impl Cpu<'_> {
    /// Calls the system with the addresses of the result and of the parameters in local memory.
    pub(crate) fn call_system(
        &mut self,
        site: &mut Site<'_>,
        call: SystemCall,
        result: Option<u64>,
        parameters: &[(u64, u32)],
    ) -> OrFault<Flow> {
        self.progress = true;
        for lane in Lanes(site.m) {
            let mut given = [0; 5];
            for (value, &(address, bytes)) in given.iter_mut().zip(parameters) {
                *value = self.fetch(site, Space::Local, lane, address, bytes)?;
            }
            let [a, b, c, d, e] = given;
            let value = match call {
                SystemCall::Printf => self.printf(site, lane, [a, b])?,
                SystemCall::AssertFail => return self.assert_fail(site, lane, [a, b, c, d], e),
                SystemCall::Malloc => self.malloc(a),
                SystemCall::Free => self.free(site, lane, a).map(|()| 0)?,
            };
            if let Some(address) = result {
                let access = Access::new(if call == SystemCall::Printf { 4 } else { 8 }, 1, true);
                self.undefined = [0; 4];
                self.by_places(site, (Space::Local, [address; 32], 1 << lane), &access, &mut |places, _| {
                    write(places[lane], access.bytes, value);
                })?;
            }
        }
        Ok(Flow::Next)
    }

    /// Reads an element for the system, which depends on it; checked like the lane's own access.
    fn fetch(&mut self, site: &mut Site<'_>, space: Space, lane: usize, address: u64, bytes: u32) -> OrFault<u64> {
        let (mut value, access) = ([0; 8], Access::new(bytes, 1, false));
        self.undefined = [0; 4];
        self.read_lane(site, (space, address), lane, &access, &mut value[..bytes as usize])?;
        // Of other memory it has been found.
        if std::mem::take(&mut self.undefined) != [0; 4] {
            let message = format!("this call of the system takes {bytes} bytes that nothing has written");
            self.find(self.fault_at(FaultKind::UninitialisedMemory, &site.at, lane, address, message))?;
        }
        Ok(u64::from_le_bytes(value))
    }

    /// A string of characters of some bytes, up to its NUL.
    fn string(&mut self, site: &mut Site<'_>, lane: usize, address: u64, each: u32) -> OrFault<Vec<u8>> {
        if address == 0 {
            return Ok(b"(null)".to_vec());
        }
        let mut text = Vec::new();
        while text.len() < LONGEST {
            let at = address.wrapping_add(text.len() as u64 * u64::from(each));
            match self.fetch(site, Space::Generic, lane, at, each)? {
                0 => break,
                c => text.push(c as u8),
            }
        }
        Ok(text)
    }

    fn argument(&mut self, site: &mut Site<'_>, list: &mut Arguments, bytes: u32) -> OrFault<u64> {
        let at = list.next.next_multiple_of(bytes.into());
        (list.next, list.taken) = (at.wrapping_add(bytes.into()), list.taken + 1);
        self.fetch(site, Space::Generic, list.lane, at, bytes)
    }

    /// Prints, and returns the number of arguments; -1 as 32 bits for a format that is null.
    fn printf(&mut self, site: &mut Site<'_>, lane: usize, [format, arguments]: [u64; 2]) -> OrFault<u64> {
        if format == 0 {
            return Ok(u32::MAX.into());
        }
        let format = self.string(site, lane, format, 1)?;
        let unknown = |what: String| {
            let message = format!("printf of a conversion that C does not have: `{what}`");
            self.fault(FaultKind::IllegalInstruction, &site.at, Some(lane), message)
        };
        let pieces = pieces(&format).map_err(unknown)?;
        let (mut out, mut list) = (Vec::new(), Arguments { lane, next: arguments, taken: 0 });
        for piece in pieces {
            let mut conversion = match piece {
                Piece::Text(text) => {
                    out.extend(text);
                    continue;
                }
                Piece::Conversion(conversion) => conversion,
            };
            if conversion.width == Some(Count::Argument) {
                conversion = conversion.with_width(self.argument(site, &mut list, 4)? as i32);
            }
            if conversion.precision == Some(Count::Argument) {
                conversion = conversion.with_precision(self.argument(site, &mut list, 4)? as i32);
            }
            let bytes = if let Form::Integer(bytes) = conversion.argument() { bytes } else { 8 };
            let value = self.argument(site, &mut list, bytes)?;
            out.extend(match conversion.argument() {
                Form::Text => {
                    let text = self.string(site, lane, value, 1)?;
                    conversion.text(&text)
                }
                Form::Integer(_) | Form::Double => conversion.number(value),
            });
        }
        self.cx.print(&out);
        Ok(list.taken.into())
    }

    fn assert_fail(
        &mut self,
        site: &mut Site<'_>,
        lane: usize,
        [message, file, line, function]: [u64; 4],
        each: u64,
    ) -> OrFault<Flow> {
        let each = if matches!(each, 2 | 4) { each as u32 } else { 1 };
        let [message, file, function] = {
            let mut text = |address| self.string(site, lane, address, each);
            [text(message)?, text(file)?, text(function)?].map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        let message = format!("{file}:{}: {function}: assertion `{message}` failed", line as u32);
        Err(self.fault(FaultKind::Assertion, &site.at, Some(lane), message))
    }

    /// Memory of the device's heap; 0 where it has no room.
    fn malloc(&mut self, bytes: u64) -> u64 {
        let address = self.cx.memory.alloc_on_heap(bytes, self.cx.config.heap_bytes).unwrap_or(0);
        self.table = self.cx.memory.table();
        address
    }

    fn free(&mut self, site: &Site<'_>, lane: usize, address: u64) -> OrFault<()> {
        if address == 0 || self.cx.memory.free_on_heap(address) {
            self.table = self.cx.memory.table();
            return Ok(());
        }
        let freed = self.table.was_freed(address);
        let kind = if freed { FaultKind::UseAfterFree } else { FaultKind::OutOfBounds };
        let message = if freed { "free of memory that was freed" } else { "free of what malloc has not returned" };
        Err(self.fault_at(kind, &site.at, lane, address, message))
    }
}

impl super::LaunchCx<'_> {
    /// Adds to what the launch prints.
    pub(crate) fn print(&self, text: &[u8]) {
        let mut printed = lock(&self.printed);
        printed.extend_from_slice(text);
        if printed.len() >= LONGEST {
            self.config.output.write(&std::mem::take(&mut *printed));
        }
    }
}
