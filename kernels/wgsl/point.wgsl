// Points of y^2 = x^3 + 7, and of the curves that look like it in other coordinates: nothing here uses the 7.
struct Affine {
    x: Fe,
    y: Fe,
}

// (x/z^2, y/z^3)
struct Jacobian {
    x: Fe,
    y: Fe,
    z: Fe,
}

// 2M + 5S. There is no point of order two.
fn double_point(p: Jacobian) -> Jacobian {
    let a = sqr(p.x);
    let b = sqr(p.y);
    let z = times_power(mul(p.y, p.z), 1u);
    let c = sqr(b);
    let d = times_power(sub(sub(sqr(add(p.x, b)), a), c), 1u);
    let e = add(times_power(a, 1u), a);
    let x = sub(sqr(e), times_power(d, 1u));
    let y = sub(mul(e, sub(d, x)), times_power(c, 3u));
    return Jacobian(x, y, z);
}

// 7M + 4S. Gives z = 0 for p = q and p = -q.
fn add_point(p: Jacobian, q: Affine) -> Jacobian {
    let zz = sqr(p.z);
    let h = sub(mul(q.x, zz), p.x);
    let r = times_power(sub(mul(mul(p.z, zz), q.y), p.y), 1u);
    let hh = sqr(h);
    let z = sub(sub(sqr(add(p.z, h)), zz), hh);
    let i = times_power(hh, 2u);
    let j = mul(h, i);
    let v = mul(p.x, i);
    let x = sub(sub(sqr(r), j), times_power(v, 1u));
    let y = sub(mul(r, sub(v, x)), times_power(mul(p.y, j), 1u));
    return Jacobian(x, y, z);
}

// The sum of two points with the same z, the first of them in the sum's coordinates, and the factor by which z grew, with its
// square and cube. 5M + 2S.
struct SameZ {
    sum: Affine,
    first: Affine,
    h: Fe,
    hh: Fe,
    hhh: Fe,
}

fn add_same_z(p: Affine, q: Affine) -> SameZ {
    let h = sub(q.x, p.x);
    let hh = sqr(h);
    let hhh = mul(hh, h);
    let first = Affine(mul(p.x, hh), mul(p.y, hhh));
    let r = sub(q.y, p.y);
    let x = sub(sub(sqr(r), hhh), times_power(first.x, 1u));
    let y = sub(mul(r, sub(first.x, x)), first.y);
    return SameZ(Affine(x, y), first, h, hh, hhh);
}

// The same point where z is larger by a factor of which these are the square and the cube.
fn rescaled(p: Affine, square: Fe, cube: Fe) -> Affine {
    return Affine(mul(p.x, square), mul(p.y, cube));
}
