// One leg of a multigrid cycle on a small grid, in any dimension: a block makes all of it for a
// tile of points. The tile and its surroundings, REACH points at each side on which the tile
// depends, lie in shared memory. Sweeps of one colour are made in place; each sweep leaves one
// layer more of the surroundings as it was.

// The copy of a register to which a warp adds its norm.
#define COPY (blockIdx.x * 3 + blockIdx.y * 5 + blockIdx.z * 7 + threadIdx.x / 32) % SPREAD

// An element of an array whose rows take `pitch` elements.
__device__ __forceinline__ size_t element(const int (&c)[AXES], const int (&extents)[AXES],
                                          int pitch) {
    size_t n = c[0];
    for (int axis = 1; axis < AXES; axis++)
        n = n * (axis == AXES - 1 ? pitch : extents[axis]) + c[axis];
    return n;
}

// What a thread takes at a time: a point; the two points of a pair along the last axis, one of each
// colour; the fine points of a coarse one; the points of a run along the first axis.
enum Share { POINT, PAIR, COARSE, RUN };

// A box of the tile with its surroundings, which begins `Margin` layers inside, in shares.
template <int Margin, Share Of> struct Box {
    static __device__ __forceinline__ constexpr int share(int axis) {
        return Of == COARSE || (Of == PAIR && axis == AXES - 1) ? 2
               : Of == RUN && axis == 0                         ? RUN_LENGTH
                                                                : 1;
    }
    static __device__ __forceinline__ constexpr int extent(int axis) {
        constexpr int extents[] = {TILE_EXTENTS};
        return (extents[axis] - 2 * Margin + share(axis) - 1) / share(axis);
    }
    static __device__ __forceinline__ constexpr int count() {
        int result = 1;
        for (int axis = 0; axis < AXES; axis++) result *= extent(axis);
        return result;
    }
    // The most shares of a thread.
    static constexpr int CALLS = (count() + THREADS - 1) / THREADS;

    // Calls visit(n, local, at, counts) for each share: with the number of the call, the indices of
    // its first point in the tile with its surroundings, and the place of this point in shared
    // memory. All lanes of a warp call, so some call for no share.
    template <typename Visit> static __device__ __forceinline__ void visit(Visit visit) {
        constexpr int strides[] = {STRIDES}, points = count();
        #pragma unroll
        for (int n = 0; n < CALLS; n++) {
            const int number = n * THREADS + threadIdx.x;
            if (number < (points + 31) / 32 * 32) {
                int rest = number < points ? number : 0, local[AXES], at = 0;
                for (int axis = AXES - 1; axis >= 0; axis--) {
                    local[axis] = Margin + rest % extent(axis) * share(axis);
                    at += local[axis] * strides[axis];
                    rest /= extent(axis);
                }
                visit(n, local, at, number < points);
            }
        }
    }
};
// Calls each(Number<0>()), ... each(Number<N - 1>()).
template <int N, typename Each> __device__ __forceinline__ void repeat(Each each) {
    if constexpr (N > 0) {
        repeat<N - 1>(each);
        each(Number<N - 1>());
    }
}

#if RESTRICTS
// The residual, restricted to coarse point q along the first axes up to `Axis`; `at` is the place
// of its fine point 2q - 2.
template <int Axis>
__device__ __forceinline__ real mean(const real* const (&weights)[AXES][4], const int (&q)[AXES],
                                     const real* at) {
    if constexpr (Axis < 0) {
        return *at;
    } else {
        constexpr int strides[] = {STRIDES};
        real values[4];
        for (int n = 0; n < 4; n++) values[n] = mean<Axis - 1>(weights, q, at + n * strides[Axis]);
        const int here = q[Axis];
        return restricted(weights[Axis][0][here], values[0], weights[Axis][1][here], values[1],
                          weights[Axis][2][here], values[2], weights[Axis][3][here], values[3]);
    }
}
#endif

#if CORRECTS
// The coarse solution between the coarse points beside a point, `places` from the pointer on, along
// the axes from `Axis` on: the last axis first.
template <int Axis>
__device__ __forceinline__ real between(const real* __restrict__ coarse,
                                        const size_t (&places)[AXES][2],
                                        const real (&weights)[AXES][2]) {
    if constexpr (Axis == AXES) {
        return *coarse;
    } else {
        const real below = between<Axis + 1>(coarse + places[Axis][0], places, weights);
        const real above = between<Axis + 1>(coarse + places[Axis][1], places, weights);
        return interpolated(weights[Axis][0], below, weights[Axis][1], above);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) sweeps(const integer* gate, PARAMETERS) {
#if GATED
    if (*gate) return;
#endif

    extern __shared__ __align__(16) unsigned char memory[];
    real* const u = reinterpret_cast<real*>(memory);
    real* const rest = u + TILE;
    int* const images = reinterpret_cast<int*>(u + (1 + HAS_RESIDUAL) * TILE);
    constexpr bool wraps[] = {WRAPS};
    constexpr int own[] = {OWN_POINTS};
    const int block[] = {BLOCK}, extents[] = {EXTENTS};
    // The index of each point along each axis, and whether it is updated: if not, -1 less the index.
    // Points beyond a periodic end are images, other points beyond the array are not read.
    static_assert(AXES * LONGEST <= THREADS, "a thread finds one of these indices");
    int first[AXES];
    for (int axis = 0; axis < AXES; axis++) {
        const int last = extents[axis] - 1, place = int(threadIdx.x) - axis * LONGEST;
        first[axis] = 1 + block[axis] * own[axis] - REACH;
        if (place < 0 || place >= LONGEST) continue;
        const int index = first[axis] + place;
        const int image = kept_in(index, last, wraps[axis]);
        images[threadIdx.x] = image > 0 && image < last ? image : -1 - image;
    }
    // Finds the indices of a point; returns whether it is updated.
    auto find = [&](const int(&local)[AXES], int(&c)[AXES]) {
        bool known = true;
        for (int axis = 0; axis < AXES; axis++) {
            const int image = images[axis * LONGEST + local[axis]];
            known = known && image >= 0;
            c[axis] = image < 0 ? -1 - image : image;
        }
        return known;
    };
    // Whether a point of the tile is updated by this block.
    auto is_own = [&](const int(&local)[AXES]) {
        bool result = true;
        for (int axis = 0; axis < AXES; axis++)
            result = result && first[axis] + local[axis] < extents[axis] - 1;
        return result;
    };
    PREPARE
    __syncthreads();

    int c[AXES];
#if CORRECTS
    // The coarse points beside point c along an axis, as distances in the coarse array; beyond the
    // end of a periodic axis their images. And the point's weights of them.
    const real* const all_weights[AXES][4] = {WEIGHTS};
    const int coarse_extents[] = {COARSE_EXTENTS};
    size_t places[AXES][2];
    real weights[AXES][2];
    auto come_between = [&](int axis) {
        const int q = c[axis] >> 1, last = coarse_extents[axis] - 2;
        size_t stride = 1;
        for (int other = axis + 1; other < AXES; other++)
            stride *= other == AXES - 1 ? int(coarse_pitch) : coarse_extents[other];
        places[axis][0] = stride * (wraps[axis] && q == 0 ? last : q);
        places[axis][1] = stride * (wraps[axis] && q == last ? 1 : q + 1);
        const bool odd = c[axis] & 1;
        for (int n = 0; n < 2; n++)
            weights[axis][n] = (odd ? all_weights[axis][2 + n] : all_weights[axis][n])[q];
    };
#endif
    Box<0, RUN>::visit([&](int, const int(&local)[AXES], int at, bool) {
        constexpr int tile_extents[] = {TILE_EXTENTS}, strides[] = {STRIDES};
        bool across = true;
        for (int axis = 1; axis < AXES; axis++) {
            const int image = images[axis * LONGEST + local[axis]];
            across = across && image >= 0;
            c[axis] = image < 0 ? -1 - image : image;
#if CORRECTS
            if (image >= 0) come_between(axis);
#endif
        }
        int lower = -2;  // the coarse layer of the first of these values
        real layers[2];
        #pragma unroll
        for (int layer = 0; layer < RUN_LENGTH; layer++) {
            if (local[0] + layer >= tile_extents[0]) break;
            const int image = images[local[0] + layer];
            c[0] = image < 0 ? -1 - image : image;
            real value = FROM_ZERO ? 0 : a0[element(c, extents, pitch)];
#if CORRECTS
            if (across && image >= 0) {
                come_between(0);
                const int p = image >> 1;
                if (p != lower)
                    for (int n = 0; n < 2; n++)
                        layers[n] = n == 0 && p == lower + 1
                                        ? layers[1]
                                        : between<1>(coarse + places[0][n], places, weights);
                lower = p;
                value = corrected(weights[0][0], layers[0], weights[0][1], layers[1], value);
            }
#endif
            u[at + layer * strides[0]] = value;
        }
    });
    __syncthreads();

#if T > 0
    repeat<T>([&](auto turn) {
        constexpr int t = decltype(turn)::value, colours[] = {COLOURS};
        using Pairs = Box<t + 1, PAIR>;
        // A sweep reads the other colour only: all loads may come before all stores.
        real values[Pairs::CALLS];
        int places[Pairs::CALLS];
        Pairs::visit([&](int n, const int(&local)[AXES], int at, bool counts) {
            int place[AXES], sum = colours[t] < 0;
            for (int axis = 0; axis < AXES; axis++) {
                place[axis] = local[axis];
                sum += first[axis] + local[axis];
            }
            place[AXES - 1] += sum & 1;  // the point of the pair that has this colour
            at += sum & 1;
            const bool known = find(place, c) && counts;
            values[n] = known ? point(POINT_ARGUMENTS) : 0;
            places[n] = known ? at : -1;
        });
        Pairs::visit([&](int n, const int(&)[AXES], int, bool) {
            if (places[n] >= 0) u[places[n]] = values[n];
        });
        __syncthreads();
    });
#endif

#if HAS_RESIDUAL
    Box<T + 1, POINT>::visit([&](int n, const int(&local)[AXES], int at, bool) {
        rest[at] = find(local, c) ? residual(RESIDUAL_ARGUMENTS) : 0;
    });
    __syncthreads();
#endif

#if RESIDUAL_NORM
    Norm<RESIDUAL_NORM, 1> norm(reg_residual + (COPY)*WIDTH, true);
    Box<REACH, POINT>::visit([&](int n, const int(&local)[AXES], int at, bool counts) {
        norm.take(0, rest[at], counts && is_own(local));
        norm.add();
    });
    norm.finish();
#endif

#if RESTRICTS
    const real* const weights[AXES][4] = {WEIGHTS};
    const int coarse_extents[] = {COARSE_EXTENTS};
    constexpr int strides[] = {STRIDES};
    Box<REACH, COARSE>::visit([&](int n, const int(&local)[AXES], int at, bool counts) {
        int q[AXES], from = at;
        for (int axis = 0; axis < AXES; axis++) {
            q[axis] = (first[axis] + local[axis] + 1) / 2;  // `local` is the point 2q - 1
            counts = counts && q[axis] < coarse_extents[axis] - 1;
            from -= strides[axis];
        }
        if (counts)
            coarse[element(q, coarse_extents, int(coarse_pitch))] =
                mean<AXES - 1>(weights, q, rest + from);
    });
#endif

#if T > 0 || CORRECTS
    Box<REACH, POINT>::visit([&](int n, const int(&local)[AXES], int at, bool counts) {
        find(local, c);
        if (counts && is_own(local)) o0[element(c, extents, pitch)] = u[at];
    });
#endif
}
