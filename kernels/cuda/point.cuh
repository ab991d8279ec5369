// Points of y^2 = x^3 + 7, and of the curves that look like it in other coordinates: nothing here uses the 7.
#pragma once
#include "field.cuh"

struct Affine {
    Fe x, y;
};

// (x/z^2, y/z^3)
struct Jacobian {
    Fe x, y, z;
};

// 2M + 5S. There is no point of order two.
DEVICE Jacobian double_point(Jacobian p) {
    Fe a = sqr(p.x);
    Fe b = sqr(p.y);
    Fe z = times_power<1>(mul(p.y, p.z));
    Fe c = sqr(b);
    Fe d = times_power<1>(sub(sub(sqr(add(p.x, b)), a), c));
    Fe e = add(times_power<1>(a), a);
    Fe x = sub(sqr(e), times_power<1>(d));
    Fe y = sub(mul(e, sub(d, x)), times_power<3>(c));
    return Jacobian{x, y, z};
}

// 7M + 4S. Gives z = 0 for p = q and p = -q. The second y comes from a function, so that it is loaded when it is needed: a
// thread has few registers.
template <typename Y>
DEVICE Jacobian add_point(Jacobian p, Fe x2, Y y2) {
    Fe zz = sqr(p.z);
    Fe h = sub(mul(x2, zz), p.x);
    Fe r = times_power<1>(sub(mul(mul(p.z, zz), y2()), p.y));
    Fe hh = sqr(h);
    Fe z = sub(sub(sqr(add(p.z, h)), zz), hh);
    Fe i = times_power<2>(hh);
    Fe j = mul(h, i);
    Fe v = mul(p.x, i);
    Fe x = sub(sub(sqr(r), j), times_power<1>(v));
    Fe y = sub(mul(r, sub(v, x)), times_power<1>(mul(p.y, j)));
    return Jacobian{x, y, z};
}

// The sum of two points with the same z, the first of them in the sum's coordinates, and the factor by which z grew, with its
// square and cube. 4M + 2S.
struct SameZ {
    Affine sum, first;
    Fe h, hh, hhh;
};

COLD void add_same_z(SameZ &o, const Affine &p, const Affine &q) {
    o.h = sub(q.x, p.x);
    o.hh = mul_cold(o.h, o.h);
    o.hhh = mul_cold(o.hh, o.h);
    o.first.x = mul_cold(p.x, o.hh);
    o.first.y = mul_cold(p.y, o.hhh);
    Fe r = sub(q.y, p.y);
    o.sum.x = sub(sub(mul_cold(r, r), o.hhh), times_power<1>(o.first.x));
    o.sum.y = sub(mul_cold(r, sub(o.first.x, o.sum.x)), o.first.y);
}

// Makes it the same point where z is larger by a factor of which these are the square and the cube.
COLD void rescale(Affine &p, const Fe &square, const Fe &cube) {
    p.x = mul_cold(p.x, square);
    p.y = mul_cold(p.y, cube);
}
