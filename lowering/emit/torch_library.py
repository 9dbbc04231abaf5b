"""Small functions that a generated module takes along: only those that its own code calls."""

from collections.abc import Iterable

from gnomon.lowering.emit import gpu_library, gpu_reach, gpu_sums, made_library

_SOURCES = {
    "prefix_sum": '''
def prefix_sum(x, starts):
    """The float64 sum of x over the tokens of a sequence up to each one, [batch, time, ...].

    `starts` names the first token of each token's sequence where several are packed. A step below
    -1e30 counts as -1e5: e^-1e5 is 0, and differences of sums stay finite in float32 too.
    """
    x = x.masked_fill(x < -1e30, -1e5)
    parts = [x]
    if starts is not None and len(starts):  # each sequence by itself: none must spoil another
        parts = x.split(starts.unique_consecutive(return_counts=True)[1].tolist(), 1)
    # along memory: across it a GPU takes forty times as long
    return torch.cat([p.movedim(1, -1).contiguous().cumsum(-1).movedim(-1, 1) for p in parts], 1)
''',
    "along_time": '''
def along_time(x):
    """x [batch, time, heads] laid out so that the numbers of a head follow one another.

    The next head begins at a multiple of 16 numbers, so that a GPU copies 16 bytes at a time.
    """
    T, rows = x.shape[1], x.transpose(1, 2).contiguous()
    rows = F.pad(rows, (0, -T % 16))[..., :T] if T % 16 else rows
    return rows.transpose(1, 2)
''',
    "row_dot": '''
def row_dot(a, b):
    """a_i . b_i of each row of channels, in float32."""
    return (a.float() * b).sum(-1)
''',
    "two_digits": '''
def two_digits(x):
    """A float64 tensor as two of float32 laid along time, high + low: 48 bits between them.

    The gradient goes through the high ones.
    """
    high = x.float()
    return along_time(high), along_time((x.detach() - high.detach()).float())
''',
    "prefix_digits": '''
def prefix_digits(x, call):
    """The sum of x [batch, time, heads] up to each token of its sequence, in two digits."""
    return two_digits(prefix_sum(x, sequence_starts(call)))
''',
    "row_statistics": '''
def row_statistics(do, o, lse, dlse):
    """What the backward kernels read of each row, [batch, time, head], and dlse.

    delta = do . o - dlse, and lse / ln 2. A row without keys has inf there, and no dlse.
    """
    dead = lse == -torch.inf
    dlse = dlse.masked_fill(dead, 0.0)
    lse_log2 = along_time(lse.masked_fill(dead, torch.inf) * 1.4426950408889634)
    return along_time(row_dot(do, o) - dlse), lse_log2, dlse
''',
    "refuse_second_derivative": '''
def refuse_second_derivative():
    """Autograd records a backward pass only for create_graph=True: no silent zero then."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the backward kernels have no derivative of their own: call backward or "
            "torch.autograd.grad without create_graph=True"
        )
''',
    "carried_dot": '''
def carried_dot(q, k, low, log):
    """q_i M_i ... M_{j+1} . k_j with M = Diag(e^log) - (beta w) u^T, [batch, query, key, head].

    `low` is (beta w, u) of each token, with several of them their product, or None; `log` of each
    token, or None. One step after another.
    """
    columns, T_k = [], k.shape[1]
    position = torch.arange(T_k - q.shape[1], T_k, device=q.device)[None, :, None, None]
    for token in reversed(range(T_k)):
        columns.append((q * k[:, token, None]).sum(-1))
        kept = q if log is None else q * log[:, token, None].exp()
        if low is not None:
            w, u = (x[:, token, None] for x in low)
            pairs = [(w, u)] if w.ndim == q.ndim else zip(w.unbind(3), u.unbind(3), strict=True)
            x = q
            for one_w, one_u in reversed(list(pairs)):
                kept = (x if log is None else kept) - (x * one_w).sum(-1, keepdim=True) * one_u
                x = kept
        q = torch.where(position >= token, kept, q)
    return torch.stack(columns[::-1], 2) if columns else q.new_zeros(*q.shape[:2], 0, q.shape[2])
''',
    "position_steps": '''
def position_steps(position, starts):
    """How far each token is from the one before it, 0 for the first of a sequence."""
    steps = position.diff(dim=1, prepend=position[:, :1])
    steps = steps if steps.is_floating_point() else steps.float()
    if starts is not None:
        first = starts == torch.arange(len(starts), device=starts.device)
        steps = steps.masked_fill(first[None, :, None], 0.0)
    return steps
''',
    "rotate_half": '''
def rotate_half(x, angle):
    """x with each plane (c, c + d/2) of its channels turned by its angle."""
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
''',
    "rotate_pairs": '''
def rotate_pairs(x, angle):
    """x with each plane (2c, 2c + 1) of its channels turned by its angle."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
''',
    "times_blocks": '''
def times_blocks(x, m):
    """x m for a block-diagonal m [..., block, row, column]: each block acts on its own channels."""
    parts = x.unflatten(-1, (m.shape[-3], m.shape[-2]))
    return (parts[..., None, :] @ m)[..., 0, :].flatten(-2)
''',
    "concat": '''
def concat(*parts):
    """Channels one after another; what is shared by heads or batches is repeated for them."""
    shape = torch.broadcast_shapes(*(x.shape[:-1] for x in parts))
    return torch.cat([x.expand(*shape, -1) for x in parts], -1)
''',
    "cos_of_turns": '''
def cos_of_turns(x):
    """cos(2 pi x), the whole turns taken off first."""
    return (2 * math.pi * (x - x.detach().round())).cos()
''',
    "count_documents": '''
def count_documents(ids_q, ids, origin, start, stop):
    """How many of the keys [start, stop) of its sequence share a query's document.

    One sorted list of (document, key) answers every query by two searches.
    """
    T_k = ids.shape[1]
    order = torch.arange(T_k, device=ids.device)
    keys = (ids[..., 0].long() * T_k + order).sort(1).values
    first = ids_q.long() * T_k + origin
    low, high = (torch.searchsorted(keys, (first + x)[..., 0].contiguous()) for x in (start, stop))
    return (high - low).clamp(min=0)[..., None]
''',
    "cut_positions": '''
def cut_positions(positions, keys):
    """The positions of one packed sequence."""
    if isinstance(positions, dict):
        return {name: x[:, keys] for name, x in positions.items()}
    return None if positions is None else positions[:, keys]
''',
    "call": '''
class Call(NamedTuple):
    """The sizes of a call, and the offsets of its packed sequences."""

    B: int
    T_q: int
    T_k: int
    H: int
    KV: int
    sequences: int
    longest_q: int
    longest_k: int
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None

    def of_queries(self, x):
        """A number for each packed sequence, for each of its queries: [1, time_q, 1]."""
        counts = self.cu_seqlens_q.diff()
        return x.repeat_interleave(counts, output_size=self.T_q)[None, :, None]

    def of_tokens(self, x):
        """A number for each packed sequence, for each of its tokens: [1, time_k, 1]."""
        counts = self.cu_seqlens_k.diff()
        return x.repeat_interleave(counts, output_size=self.T_k)[None, :, None]
''',
    "query_rows": '''
def query_rows(call):
    """Which token each query is: the queries are the last tokens of their sequence."""
    if call.cu_seqlens_q is None or call.cu_seqlens_q is call.cu_seqlens_k:
        return slice(call.T_k - call.T_q, call.T_k)
    shift = (call.cu_seqlens_k - call.cu_seqlens_q)[1:]
    return torch.arange(call.T_q, device=shift.device) + call.of_queries(shift)[0, :, 0]
''',
    "sequence_starts": '''
def sequence_starts(call):
    """The first token of each token's sequence, or None where nothing is packed."""
    if call.cu_seqlens_k is None:
        return None
    return call.of_tokens(call.cu_seqlens_k[:-1])[0, :, 0]
''',
    "counted_positions": '''
def counted_positions(call, device):
    """0, 1, ... in each sequence: [1, time_k, 1] of the tokens, [1, time_q, 1] of the queries."""
    if call.cu_seqlens_k is None:
        tokens = torch.arange(call.T_k, device=device)
        queries = torch.arange(call.T_k - call.T_q, call.T_k, device=device)
        return tokens[None, :, None], queries[None, :, None]
    ends_q, ends_k, starts = call.cu_seqlens_q[1:], call.cu_seqlens_k[1:], call.cu_seqlens_k[:-1]
    tokens = torch.arange(call.T_k, device=device)[None, :, None] - call.of_tokens(starts)
    queries = torch.arange(call.T_q, device=device)[None, :, None]
    return tokens, queries + call.of_queries(ends_k - ends_q - starts)
''',
    "sequence_lengths": '''
def sequence_lengths(call, device):
    """How many keys a sequence has, by token [1, time_k, 1] and by query [1, time_q, 1]."""
    if call.cu_seqlens_k is None:
        length = torch.full((1, 1, 1), call.T_k, device=device)
        return length.expand(1, call.T_k, 1), length.expand(1, call.T_q, 1)
    lengths = call.cu_seqlens_k.diff()
    return call.of_tokens(lengths), call.of_queries(lengths)
''',
    "fold_heads": '''
def fold_heads(gradient, like, axis):
    """A gradient summed over the query heads that share a head of `like`, shaped like it."""
    heads = like.shape[axis]
    if gradient.shape[axis] != heads:
        gradient = gradient.unflatten(axis, (heads, -1)).sum(axis + 1)
    return gradient.reshape(like.shape).to(like.dtype)
''',
    "when_called": '''
def when_called(signature, **options):
    """A decorator like Numba's njit that compiles at the first call, so that an import is quick."""

    def decorate(function):
        compiled = []

        @wraps(function)
        def call(*args):
            if not compiled:
                compiled.append(njit(signature, **options)(function))
            compiled[0](*args)

        return call

    return decorate
''',
    "cdiv": '''
def cdiv(a, b):
    """The quotient, rounded up."""
    return -(-a // b)
''',
    "run": '''
def run(kernel, *args):
    """A launch: as many threads as torch uses share the programs, BLAS inside of each has one."""
    threads = torch.get_num_threads()
    with BLAS.one_thread():
        if threads == 1:
            return kernel(0, 1, *args)
        workers = 4 * threads  # more shares than threads: who is done early takes another
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(kernel, n, workers, *args) for n in range(workers)]:
                done.result()


class Blas:
    """The BLAS libraries of this process; launches in several threads share one limit."""

    def __init__(self):
        assert scipy.linalg.cython_blas  # Numba calls its BLAS: it must be there to be held
        self.lock, self.launches, self.limits = threading.Lock(), 0, None
        self.libraries = threadpoolctl.ThreadpoolController().select(user_api="blas")

    @contextmanager
    def one_thread(self):
        """Hold BLAS to one thread, and give back what it had when the last launch ends."""
        with self.lock:
            if self.launches == 0:
                self.limits = self.libraries.limit(limits=1)
            self.launches += 1
        try:
            yield
        finally:
            with self.lock:
                self.launches -= 1
                if self.launches == 0:
                    self.limits.restore_original_limits()


BLAS = Blas()
''',
    "array": '''
def array(x):
    """A tensor's memory for Numba; 16-bit floats as their bits."""
    x = x.detach()
    if x.dtype in (torch.bfloat16, torch.float16):
        return x.view(torch.int16).numpy().view(np.uint16)
    return x.numpy()
''',
    "device_of": '''
def device_of(x):
    """The device of a tensor as the current one; Triton's interpreter runs on the CPU."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
''',
    "described": '''
def described(x, *extents):
    """A descriptor for tiles of one head of x [batch, time, heads, width], or of one matrix."""
    leading = x.dim() - len(extents)
    x = x.transpose(1, 2) if leading == 2 else x
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1] * leading + list(extents))
''',
    "has_descriptors": '''
def has_descriptors(*tensors):
    """Whether the GPU copies tiles of these tensors by hardware: compute capability 9 or more.

    It wants a last axis without gaps, and addresses and the other strides in whole 16 bytes.
    """
    if tensors[0].is_cuda and not copies_tiles(tensors[0].device):
        return False
    for x in tensors:
        *steps, last = x.stride()
        size = x.element_size()
        if x.numel() == 0 or last != 1 or x.data_ptr() % 16:
            return False
        if any(step <= 0 or step * size % 16 for step in steps):
            return False
    return True


@lru_cache
def copies_tiles(device):
    """Whether a GPU copies tiles by hardware."""
    return torch.cuda.get_device_capability(device) >= (9, 0)
''',
    "padded_width": '''
def padded_width(width):
    """The power of two, at least 16, that holds a width."""
    return max(16, 1 << (width - 1).bit_length())
''',
    "softmax": '''
def softmax(logit, visible, sink=None):
    """The weights [batch, query, key, head] and the log-sum-exp [batch, query, head].

    A row that sees no key has weights 0 and log-sum-exp -inf, and gives gradient 0.
    """
    alive = visible.any(2, keepdim=True)
    logit = torch.where(visible, logit, -torch.inf)
    logit = torch.where(alive, logit, 0.0)
    lse = logit.logsumexp(2, keepdim=True)
    if sink is not None:
        lse = torch.logaddexp(lse, sink + torch.zeros_like(lse))
    weights = torch.where(visible, (logit - lse).exp(), 0.0)
    return weights, torch.where(alive, lse, -torch.inf)[:, :, 0]
''',
    "ratio": '''
def ratio(numerator, denominator, visible, at_least):
    """The weights n_ij / max(|sum_l d_il|, at_least), [batch, query, key, head]."""
    total = torch.where(visible, denominator, 0.0).sum(2, keepdim=True).abs()
    total = torch.where(total >= at_least, total, at_least)
    total = torch.where(visible.any(2, keepdim=True), total, 1.0)
    return torch.where(visible, numerator, 0.0) / total
''',
    "read_rows": '''
def read_rows(table, index):
    """table[b, i, h, index[b, i, j, h]]: each query's own table read for each key."""
    shape = torch.broadcast_shapes(index.shape, table[:, :, None, :, 0].shape)
    index = index.expand(shape).movedim(2, -1)
    table = table.expand(*index.shape[:-1], -1)
    return table.gather(-1, index).movedim(-1, 2)
''',
    "read_columns": '''
def read_columns(table, index):
    """table[b, j, h, index[b, i, j, h]]: each key's own table read for each query."""
    shape = torch.broadcast_shapes(index.shape, table[:, None, :, :, 0].shape)
    index = index.expand(shape).movedim(1, -1)
    table = table.expand(*index.shape[:-1], -1)
    return table.gather(-1, index).movedim(-1, 1)
''',
}


_SOURCES |= made_library.SOURCES
_SOURCES |= gpu_sums.SOURCES | gpu_reach.SOURCES | gpu_library.SOURCES
NAMES = frozenset(_SOURCES) | gpu_library.INNER | gpu_reach.INNER | gpu_sums.INNER
"""What a module may call."""

_NEEDS = {
    "prefix_digits": ("two_digits", "prefix_sum", "sequence_starts"),
    "two_digits": ("along_time",),
    "row_statistics": ("along_time", "row_dot"),
    "row_statistics_on_gpu": ("padded_width", "device_of"),
    "margin_of_norms_on_gpu": ("padded_width", "device_of"),
}


def closure(names: Iterable[str]) -> set[str]:
    """These functions and those that they call."""
    found = set(names)
    while more := {x for name in found for x in _NEEDS.get(name, ())} - found:
        found |= more
    return found


def functions(names: Iterable[str]) -> list[str]:
    """The sources of these functions, in the order of the library."""
    wanted = set(names)
    return [source.strip() for name, source in _SOURCES.items() if name in wanted]
