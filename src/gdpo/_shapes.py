"""Annotates arrays with their axes: `Float[Array, "prompt sample"]`.

Only tests check these annotations of jaxtyping. Without jaxtyping, they are `Any`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
    from jaxtyping import Int64 as Int64
    from jaxtyping import Real as Real
    from jaxtyping import UInt64 as UInt64
else:
    try:
        from jaxtyping import Bool, Float, Int, Int64, Real, UInt64
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, _: object) -> Any:
                return Any

        Bool = Float = Int = Int64 = Real = UInt64 = _Unchecked
