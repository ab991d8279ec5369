// Products of words where the device has 64-bit integers; wide32.wgsl is the same for others.

// a·b + c + d, as (low, high): it can't overflow.
fn multiply_add(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
    let sum = u64(a) * u64(b) + u64(c) + u64(d);
    return vec2(u32(sum), u32(sum >> 32u));
}
