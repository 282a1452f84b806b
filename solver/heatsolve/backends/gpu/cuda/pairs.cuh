// Stores the pair of a thread, or the element of the pair that is in the region.

template <typename Real, typename Pair>
__device__ __forceinline__ void store(Real* to, bool first, bool second, Pair pair) {
    if (first && second)
        *(Pair*)to = pair;
    else if (first)
        to[0] = pair.x;
    else
        to[1] = pair.y;
}
