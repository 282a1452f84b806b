"""Sine and cosine transforms by real FFTs alone, for array libraries that have no others.

The transforms and their missing norms are those of scipy.fft. Only three are computed: type 1 by
the FFT of the line continued to its period, types 2 and 3 by that of the line itself, reordered
(J. Makhoul, IEEE Trans. Acoust. Speech Signal Process. 28 (1980), 27); the others follow by
turning a line round, by alternating signs, and by continuing it beyond a wall.
"""

from typing import Any


class RealTransforms:
    """The transforms of an array library; its `fft` has rfft, irfft, rfftn and irfftn."""

    def __init__(self, namespace: Any, fft: Any):
        self._xp, self._fft = namespace, fft

    def real(self, x: Any, transform: str, kind: int, axis: int) -> Any:
        """The "dst" or "dct" of a type along an axis; x may be overwritten."""
        names = {"dst": "sine", "dct": "cosine"}
        along = getattr(self, f"_{names[transform]}_{kind}")
        lines = self._xp.moveaxis(x, axis, -1)
        return self._xp.ascontiguousarray(self._xp.moveaxis(along(lines), -1, axis))

    def spectrum(self, x: Any, axes: tuple[int, ...]) -> Any:
        """The Fourier transform of reals over some axes, of which the last keeps one half."""
        return self._xp.ascontiguousarray(self._fft.rfftn(x, axes=axes))

    def values(self, z: Any, lengths: tuple[int, ...], axes: tuple[int, ...]) -> Any:
        """The reverse of `spectrum`, times the product of the lengths; z may be overwritten."""
        given = {"s": lengths, "axes": axes, "norm": "forward", "overwrite_x": True}
        return self._xp.ascontiguousarray(self._fft.irfftn(z, **given))

    def _cosine_1(self, x: Any) -> Any:
        """x_0 + (-1)^k x_N-1 + 2 sum x_n cos(pi k n / (N - 1))."""
        whole = self._xp.concatenate([x, x[..., -2:0:-1]], axis=-1)
        return self._fft.rfft(whole).real

    def _sine_1(self, x: Any) -> Any:
        """2 sum x_n sin(pi (k + 1) (n + 1) / (N + 1))."""
        zero = self._xp.zeros_like(x[..., :1])
        whole = self._xp.concatenate([zero, x, zero, -x[..., ::-1]], axis=-1)
        return -self._fft.rfft(whole).imag[..., 1:-1]

    def _cosine_2(self, x: Any) -> Any:
        """2 sum x_n cos(pi k (2 n + 1) / (2 N))."""
        n = x.shape[-1]
        line = self._xp.concatenate([x[..., 0::2], x[..., 1::2][..., ::-1]], axis=-1)
        half = self._fft.rfft(line)
        half *= 2.0 * self._turns(n, half.dtype, -1.0)
        ahead = half.imag[..., (n - 1) // 2 : 0 : -1]
        return self._xp.concatenate([half.real, -ahead], axis=-1)

    def _cosine_3(self, x: Any) -> Any:
        """x_0 + 2 sum x_n cos(pi (2 k + 1) n / (2 N))."""
        xp, n = self._xp, x.shape[-1]
        # The point N - k beside each k, of which there is none for k = 0.
        beside = xp.concatenate([xp.zeros_like(x[..., :1]), x[..., : (n - 1) // 2 : -1]], axis=-1)
        half = x[..., : n // 2 + 1] - 1j * beside[..., : n // 2 + 1]
        half *= self._turns(n, half.dtype, 1.0)
        line = self._fft.irfft(half, n=n, norm="forward")
        result = xp.empty_like(line)
        result[..., 0::2] = line[..., : (n + 1) // 2]
        result[..., 1::2] = line[..., (n + 1) // 2 :][..., ::-1]
        return result

    def _cosine_4(self, x: Any) -> Any:
        """2 sum x_n cos(pi (2 k + 1) (2 n + 1) / (4 N)): every second mode of a line twice as long.

        Beyond the wall of value 0 it goes on with the opposite sign, to a second insulated wall.
        """
        whole = self._xp.concatenate([x, -x[..., ::-1]], axis=-1)
        return 0.5 * self._cosine_2(whole)[..., 1::2]

    def _sine_2(self, x: Any) -> Any:
        return self._cosine_2(x * self._signs(x))[..., ::-1]

    def _sine_3(self, x: Any) -> Any:
        return self._cosine_3(x[..., ::-1]) * self._signs(x)

    def _sine_4(self, x: Any) -> Any:
        return self._cosine_4(x[..., ::-1]) * self._signs(x)

    def _turns(self, n: int, dtype: Any, sign: float) -> Any:
        """exp(+- i pi k / (2 N)) for the frequencies of a real line of N points."""
        xp = self._xp
        return xp.exp(sign * 0.5j * xp.pi / n * xp.arange(n // 2 + 1)).astype(dtype)

    def _signs(self, x: Any) -> Any:
        """1, -1, 1, ... along a line."""
        return (1 - 2 * (self._xp.arange(x.shape[-1]) % 2)).astype(x.dtype)
