// Products of words where the device has no 64-bit integers; wide64.wgsl is the same for others.

// a·b + c + d, as (low, high): it can't overflow.
fn multiply_add(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let low = a0 * b0;
    // Each is at most (2^16 - 1)^2, so that there is room for a half word and for its upper half.
    let cross = a0 * b1 + (low >> 16u);
    let other = a1 * b0 + (cross & 0xffffu);
    let first = add_carry((other << 16u) | (low & 0xffffu), c, 0u);
    let second = add_carry(first.x, d, 0u);
    return vec2(second.x, a1 * b1 + (cross >> 16u) + (other >> 16u) + first.y + second.y);
}
