"""Rotations by the position: RoPE and its stretched forms."""

import math

import gnomon as gn
from gnomon import Param, Plane
from gnomon.dsl.catalogue.entry import Family

ROTARY = Family("rotations by position")
ROPE = "Su et al. 2021 (RoFormer), arXiv 2104.09864"
YARN = "Peng et al. 2023 (YaRN), arXiv 2309.00071"


def rotary(q, k, angle, layout="half"):
    "q_i R(angle_j - angle_i) k_j / sqrt(d): what every rotary variant shares."
    return gn.dot(gn.rotate(q, angle, layout), gn.rotate(k, angle, layout)) * gn.rsqrt_dim(q)


@ROTARY.row(23, ROPE)
@gn.variant
def rope_pairs(q, k, *, base=10000.0):
    "q_i R((j - i) omega) k_j / sqrt(d), planes (2c, 2c + 1),  omega_c = base^(-2c / d)"
    angle = gn.position() * gn.frequencies(q, base)
    return gn.softmax(rotary(q, k, angle, "pairs"), mask=gn.causal())


@ROTARY.row(24, f"{ROPE}; the layout of Black et al. 2022 (GPT-NeoX), arXiv 2204.06745")
@gn.variant
def rope(q, k, *, base=10000.0):
    "q_i R((j - i) omega) k_j / sqrt(d), planes (c, c + d/2),  omega_c = base^(-2c / d)"
    return gn.softmax(rotary(q, k, gn.position() * gn.frequencies(q, base)), mask=gn.causal())


@ROTARY.row(25, "Black et al. 2022 (GPT-NeoX), arXiv 2204.06745")
@gn.variant
def rope_partial(q, k, *, base=10000.0, share=0.25):
    "(R q_i)_rotated . (R k_j)_rotated + q_rest . k_rest, over sqrt(d): rotary on a share of d"
    (qr, qn), (kr, kn) = gn.split(q, share), gn.split(k, share)
    angle = gn.position() * gn.frequencies(qr, base)
    q, k = gn.concat(gn.rotate(qr, angle), qn), gn.concat(gn.rotate(kr, angle), kn)
    return gn.softmax(gn.dot(q, k) * gn.rsqrt_dim(q), mask=gn.causal())


@ROTARY.row(
    25, "Barbero et al. 2024 (p-RoPE), arXiv 2410.06205; Chen et al. 2024 (HoPE), arXiv 2410.21216"
)
@gn.variant
def p_rope(q, k, *, base=10000.0, share=0.75):
    "q_i R((j - i) omega) k_j / sqrt(d),  omega_c = base^(-2c / d) for c < share d/2, else 0"
    still = gn.plane(q) < share * gn.dim(q) / 2
    omega = gn.where(still, gn.frequencies(q, base), 0.0)
    return gn.softmax(rotary(q, k, gn.position() * omega), mask=gn.causal())


@ROTARY.row(26, "Heo et al. 2024 (axial RoPE), arXiv 2403.13298")
@gn.variant
def rope_axial(q, k, *, base=100.0):
    """q_i R((y_j - y_i, x_j - x_i) omega) k_j / sqrt(d): half of the planes for y, half for x

    Both halves have the frequencies of one vector of d channels, cut in two; other code gives
    each half the same series.
    """
    y, x = gn.split(gn.frequencies(q, base))
    angle = gn.concat(gn.position("y") * y, gn.position("x") * x)
    return gn.softmax(rotary(q, k, angle), mask=gn.everything())


@ROTARY.row(
    26,
    "Wang et al. 2024 (M-RoPE, Qwen2-VL), arXiv 2409.12191; HoPE for video, arXiv 2505.20444",
)
@gn.variant
def m_rope(q, k, *, base=10000.0, sections=(16, 40), time_scale=1.0):
    """q_i R((p_j - p_i) omega) k_j / sqrt(d),  p_c = t, y or x by the section of plane c

    sections are the first planes of y and of x. HoPE for video scales t and does not rotate by it.
    """
    c = gn.plane(q)
    y_or_x = gn.where(c < sections[1], gn.position("y"), gn.position("x"))
    place = gn.where(c < sections[0], time_scale * gn.position("t"), y_or_x)
    return gn.softmax(rotary(q, k, place * gn.frequencies(q, base)), mask=gn.causal())


@ROTARY.row(
    27, "Chen et al. 2023 (PI), arXiv 2306.15595; Xiong et al. 2023 (ABF), arXiv 2309.16039"
)
@gn.variant
def rope_interpolated(q, k, *, base=500000.0, stretch=4.0):
    "q_i R((j - i) omega / stretch) k_j / sqrt(d): a larger base (ABF), positions divided (PI)"
    angle = gn.position() / stretch * gn.frequencies(q, base)
    return gn.softmax(rotary(q, k, angle), mask=gn.causal())


@ROTARY.row(28, f"bloc97 2023 (NTK-aware), as written in {YARN}")
@gn.variant
def rope_ntk(q, k, *, base=10000.0, scale=4.0):
    "q_i R((j - i) omega) k_j / sqrt(d),  omega_c = (base s^(d / (d - 2)))^(-2c / d)"
    d = gn.dim(q)
    omega = gn.frequencies(q, base * scale ** (d / (d - 2)))
    return gn.softmax(rotary(q, k, gn.position() * omega), mask=gn.causal())


@ROTARY.row(29, f"emozilla 2023 (dynamic NTK), as written in {YARN}")
@gn.variant
def rope_dynamic_ntk(q, k, *, base=10000.0, scale=4.0, trained=4096):
    """rope_ntk with s = max(1, scale l / L - (scale - 1)),  l the length, L the trained one

    Keys must be cached unrotated, for s changes as the sequence grows.
    """
    d = gn.dim(q)
    s = gn.maximum(scale * gn.length() / trained - (scale - 1), 1.0)
    omega = gn.frequencies(q, base * s ** (d / (d - 2)))
    return gn.softmax(rotary(q, k, gn.position() * omega), mask=gn.causal())


@ROTARY.row(30, YARN)
@gn.variant
def yarn(q, k, *, base=10000.0, scale=16.0, trained=4096, slow=1.0, fast=32.0):
    """q_i R((j - i) omega') k_j (0.1 ln s + 1)^2 / sqrt(d),  omega' = (1 - g) omega / s + g omega

    g = clip((L omega / 2 pi - slow) / (fast - slow), 0, 1), a ramp in the turns within the trained
    length L: the paper's form.
    """
    omega = gn.frequencies(q, base)
    keep = gn.clip((trained * omega / (2 * math.pi) - slow) / (fast - slow), 0.0, 1.0)
    omega = (1 - keep) * omega / scale + keep * omega
    temperature = 0.1 * math.log(scale) + 1
    return gn.softmax(rotary(q, k, gn.position() * omega) * temperature**2, mask=gn.causal())


@ROTARY.row(30, f"{YARN}, as its code has it")
@gn.variant
def yarn_by_plane(q, k, *, base=10000.0, scale=16.0, trained=4096, slow=1.0, fast=32.0):
    """yarn with g = 1 - clip((c - low) / (high - low), 0, 1), a ramp in the plane c

    low and high are the planes that turn `fast` and `slow` times within the trained length,
    rounded down and up: the form of the published code, which models were trained with.
    """
    c, d = gn.plane(q), gn.dim(q)

    def plane_of(turns):
        return d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = gn.maximum(gn.floor(plane_of(fast)), 0)
    high = gn.minimum(-gn.floor(-plane_of(slow)), d - 1)
    keep = 1 - gn.clip((c - low) / gn.maximum(high - low, 0.001), 0.0, 1.0)
    omega = gn.frequencies(q, base)
    omega = (1 - keep) * omega / scale + keep * omega
    temperature = 0.1 * math.log(scale) + 1
    return gn.softmax(rotary(q, k, gn.position() * omega) * temperature**2, mask=gn.causal())


@ROTARY.row(31, "Ding et al. 2024 (LongRoPE), arXiv 2402.13753")
@gn.variant
def longrope(q, k, stretch: Param[Plane], *, base=10000.0, exempt=4):
    """q_i R(a_j - a_i) k_j / sqrt(d),  a = i omega for i < exempt, else i omega / lambda_c

    lambda is found by a search. Released models also scale the logit by 1 + ln s / ln L.
    """
    i, omega = gn.position(), gn.frequencies(q, base)
    angle = gn.where(i < exempt, i * omega, i * omega / stretch)
    return gn.softmax(rotary(q, k, angle), mask=gn.causal())


@ROTARY.row(32, "Su 2023 (ReRoPE, a blog post); Han et al. 2023 (LM-Infinite), arXiv 2308.16137")
@gn.variant
def rerope(q, k, *, base=10000.0, window=512, leak=0.0):
    """rope at distance i - j below the window w, at w + leak (i - j - w) beyond it

    LM-Infinite: leak = 0, with a Lambda mask.
    """
    omega, i = gn.frequencies(q, base), gn.position()
    ahead = (i * leak + window * (1 - leak)) * omega
    far = gn.dot(gn.rotate(q, ahead), gn.rotate(k, i * leak * omega)) * gn.rsqrt_dim(q)
    near = rotary(q, k, i * omega)
    return gn.softmax(gn.where(gn.distance() < window, near, far), mask=gn.causal())


@ROTARY.row(33, "Jin et al. 2024 (Self-Extend), arXiv 2401.01325")
@gn.variant
def self_extend(q, k, *, base=10000.0, window=512, group=8):
    "rope at distance i - j up to the window w, at i//G - j//G + w - w//G beyond it"
    omega, i = gn.frequencies(q, base), gn.position()
    coarse, shift = i // group, window - window // group
    far = gn.dot(gn.rotate(q, (coarse + shift) * omega), gn.rotate(k, coarse * omega))
    near = rotary(q, k, i * omega)
    logit = gn.where(gn.distance() <= window, near, far * gn.rsqrt_dim(q))
    return gn.softmax(logit, mask=gn.causal())
