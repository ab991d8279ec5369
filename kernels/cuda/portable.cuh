// The few operations that the arithmetic is made of: on the device as PTX, on a host as plain C++, so that the same text can
// be tested without a card.
//
// Carries: an operation whose name ends in _cc sets the carry (after a subtraction: the borrow), one that begins with addc,
// subc or madc takes it. On the device that is the condition code, of which the compiler knows nothing: the statements are
// volatile so that they stay in order, and nothing else sets it, as PTX sets it only where .cc is written.
#pragma once

#ifdef __CUDACC__

typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__
#define COLD __device__ __noinline__
#define CONSTANT __constant__ const

#define PEREGRINE_OP2(name, text)                                                   \
    DEVICE u32 name(u32 a, u32 b) {                                                 \
        u32 r;                                                                      \
        asm volatile(text " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));               \
        return r;                                                                   \
    }
#define PEREGRINE_OP3(name, text)                                                   \
    DEVICE u32 name(u32 a, u32 b, u32 c) {                                          \
        u32 r;                                                                      \
        asm volatile(text " %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));   \
        return r;                                                                   \
    }

PEREGRINE_OP2(add_cc, "add.cc.u32")
PEREGRINE_OP2(addc_cc, "addc.cc.u32")
PEREGRINE_OP2(addc, "addc.u32")
PEREGRINE_OP2(sub_cc, "sub.cc.u32")
PEREGRINE_OP2(subc_cc, "subc.cc.u32")
PEREGRINE_OP2(subc, "subc.u32")
PEREGRINE_OP3(mad_lo_cc, "mad.lo.cc.u32")
PEREGRINE_OP3(madc_lo_cc, "madc.lo.cc.u32")
PEREGRINE_OP3(madc_hi_cc, "madc.hi.cc.u32")
PEREGRINE_OP3(madc_hi, "madc.hi.u32")

DEVICE u32 mul_lo(u32 a, u32 b) { return a * b; }
DEVICE u32 mul_hi(u32 a, u32 b) { return __umulhi(a, b); }
// The upper word of high:low << bits; bits is 1 to 31.
DEVICE u32 shifted_left(u32 high, u32 low, u32 bits) { return __funnelshift_l(low, high, bits); }
DEVICE u32 rotated_right(u32 word, u32 bits) { return __funnelshift_r(word, word, bits); }
// Adds one, and gives back what was there before.
DEVICE u32 count_up(u32 *counter) { return atomicAdd(counter, 1u); }

#undef PEREGRINE_OP2
#undef PEREGRINE_OP3

#else

#include <cstdint>

typedef std::uint32_t u32;
typedef std::uint64_t u64;
#define DEVICE static inline
#define COLD static
#define CONSTANT static const

static u32 carry_flag = 0;

DEVICE u32 keep_carry(u64 sum) {
    carry_flag = (u32)(sum >> 32);
    return (u32)sum;
}
DEVICE u32 keep_borrow(u64 difference) {
    carry_flag = (u32)(difference >> 63);
    return (u32)difference;
}
DEVICE u32 add_cc(u32 a, u32 b) { return keep_carry((u64)a + b); }
DEVICE u32 addc_cc(u32 a, u32 b) { return keep_carry((u64)a + b + carry_flag); }
DEVICE u32 addc(u32 a, u32 b) { return a + b + carry_flag; }
DEVICE u32 sub_cc(u32 a, u32 b) { return keep_borrow((u64)a - b); }
DEVICE u32 subc_cc(u32 a, u32 b) { return keep_borrow((u64)a - b - carry_flag); }
DEVICE u32 subc(u32 a, u32 b) { return a - b - carry_flag; }
DEVICE u32 mul_lo(u32 a, u32 b) { return a * b; }
DEVICE u32 mul_hi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
DEVICE u32 mad_lo_cc(u32 a, u32 b, u32 c) { return keep_carry((u64)mul_lo(a, b) + c); }
DEVICE u32 madc_lo_cc(u32 a, u32 b, u32 c) { return keep_carry((u64)mul_lo(a, b) + c + carry_flag); }
DEVICE u32 madc_hi_cc(u32 a, u32 b, u32 c) { return keep_carry((u64)mul_hi(a, b) + c + carry_flag); }
DEVICE u32 madc_hi(u32 a, u32 b, u32 c) { return mul_hi(a, b) + c + carry_flag; }
DEVICE u32 shifted_left(u32 high, u32 low, u32 bits) { return high << bits | low >> (32 - bits); }
DEVICE u32 rotated_right(u32 word, u32 bits) { return word >> bits | word << (32 - bits); }
DEVICE u32 count_up(u32 *counter) { return (*counter)++; }

#endif
