// Conversions of half floats that LLVM calls on processors without them; libgcc only has these for other processors.
// Halves are passed as their bits. Part of pool.cpp.
#include <cstdint>
#include <cstring>

#if defined(__powerpc64__)
extern "C" {

__attribute__((weak)) uint16_t __truncsfhf2(float value) {
    uint32_t x;
    memcpy(&x, &value, sizeof x);
    const uint32_t sign = x >> 16 & 0x8000;
    x &= 0x7fffffff;
    if (x > 0x7f800000) return uint16_t(sign | 0x7e00 | (x >> 13 & 0x3ff));  // NaN
    if (x >= 0x47800000) return uint16_t(sign | 0x7c00);  // from 2^16 on
    if (x < 0x38800000) {  // below 2^-14 halves are multiples of 2^-24, as floats from 0.5 on are
        float sum;
        memcpy(&sum, &x, sizeof sum);
        sum += 0.5f;
        memcpy(&x, &sum, sizeof x);
        return uint16_t(sign | (x - 0x3f000000));
    }
    x += (0u - (112u << 23)) + 0xfff + (x >> 13 & 1);  // the bias of the exponent; to nearest, ties to even
    return uint16_t(sign | x >> 13);
}

__attribute__((weak)) float __extendhfsf2(uint16_t half) {
    const uint32_t exponent = half & 0x7c00u, sign = uint32_t(half & 0x8000) << 16;
    uint32_t x = (uint32_t(half & 0x7fff) << 13) + (exponent == 0x7c00 ? 224u << 23 : exponent ? 112u << 23 : 113u << 23);
    float value;
    memcpy(&value, &x, sizeof value);
    if (!exponent) value -= 0x1p-14f;  // subnormal: there is no implicit leading 1
    memcpy(&x, &value, sizeof x);
    x |= sign;
    memcpy(&value, &x, sizeof value);
    return value;
}

}  // extern "C"
#endif
