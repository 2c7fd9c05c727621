//! Which bits of a return address are address.

/// Bits of a return address that are not a signature (AArch64 pointer authentication); all others are to be cleared.
///
/// The CPU says it itself: `xpaclri` takes the signature off the link register, whatever the kernel's number of
/// address bits is, and is a no-operation where there is no pointer authentication. Bits 55 and up of a user's code
/// address are zero, signed or not, but for a tag that branches ignore.
#[cfg(target_arch = "aarch64")]
pub fn code_mask() -> u64 {
    let mut all_signed: u64 = (1 << 55) - 1;
    // SAFETY: `hint #7` is xpaclri: it changes x30, which is given and taken back, and nothing else.
    unsafe {
        std::arch::asm!("hint #7", inout("x30") all_signed, options(nomem, nostack, preserves_flags));
    }
    all_signed
}

/// Bits of a return address that are not a signature: all.
#[cfg(not(target_arch = "aarch64"))]
pub fn code_mask() -> u64 {
    u64::MAX
}
