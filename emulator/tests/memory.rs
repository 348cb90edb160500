//! Device memory, used without a driver.

use kiln_emulator::{Memory, MemoryError};

#[test]
fn addresses_are_aligned_distinct_and_checked() {
    let m = Memory::new(1 << 20);
    let (a, b) = (m.alloc(10).unwrap(), m.alloc(1000).unwrap());
    assert_eq!((a % 512, b % 512), (0, 0));
    assert_eq!(m.used(), 512 + 1024);
    m.write(a, &[1, 2, 3]).unwrap();
    let mut out = [0; 3];
    m.read(a, &mut out).unwrap();
    assert_eq!(out, [1, 2, 3]);
    assert_eq!(m.write(a, &[0; 11]), Err(MemoryError::OutOfBounds { address: a, bytes: 11 }));
    assert!(m.write(a + 9, &[0; 2]).is_err() && m.read(a + 10, &mut out).is_err());
    assert!(matches!(m.alloc(1 << 21), Err(MemoryError::OutOfMemory { .. })));
    assert!(matches!(m.alloc(u64::MAX), Err(MemoryError::OutOfMemory { .. })));
    m.free(a).unwrap();
    assert_eq!(m.free(a), Err(MemoryError::NotAllocated { address: a }));
    assert_eq!(m.live_allocations(), [(b, 1000)]);
    assert_eq!(m.used(), 1024);
    assert_ne!(m.alloc(10).unwrap(), a, "a freed address is not used again");
}

#[test]
fn copies_carry_what_was_never_written() {
    let m = Memory::new(1 << 20);
    let (a, b) = (m.alloc(64).unwrap(), m.alloc(64).unwrap());
    m.write(a + 3, &[7; 30]).unwrap();
    m.copy(b, a, 64).unwrap();
    assert!(m.initialised(b + 3, 30).unwrap());
    assert!(!m.initialised(b + 2, 2).unwrap());
    assert!(!m.initialised(b + 33, 1).unwrap());
    // Within one allocation, and over each other.
    m.copy(a + 4, a, 40).unwrap();
    assert!(m.initialised(a + 3, 34).unwrap());
    assert!(!m.initialised(a + 37, 1).unwrap());
}

#[test]
fn fills_repeat_their_pattern_and_stay_inside() {
    let m = Memory::new(1 << 20);
    let a = m.alloc(10_000).unwrap();
    m.fill(a + 1, &[1, 2, 3, 4], 2100).unwrap();
    let mut out = vec![0; 8402];
    m.read(a, &mut out).unwrap();
    assert!(out[1..8401].chunks(4).all(|c| c == [1, 2, 3, 4]));
    assert!(!m.initialised(a, 1).unwrap() && m.initialised(a + 1, 8400).unwrap());
    assert!(!m.initialised(a + 8401, 1).unwrap());
    assert!(m.fill(a, &[0], 10_001).is_err() && m.fill(a, &[0; 4], u64::MAX).is_err());
    m.fill(a, &[9], 10_000).unwrap();
    assert!(m.initialised(a, 10_000).unwrap());
}
