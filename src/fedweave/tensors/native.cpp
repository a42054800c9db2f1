// Runs a program of array operations for one client after the other, all steps of a client in turn, so that its
// weights and all intermediate values stay in the cache of a core. `array_programs.py` writes the programs.
//
// REAL is the floating type. Vectors are those of GCC and Clang, so there is one source for every processor.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>

using Int = int64_t;
using Real = REAL;
using Bool = uint8_t;

#if defined(__AVX512F__)
constexpr int BYTES = 64, ROWS = 8;
#elif defined(__AVX__)
constexpr int BYTES = 32, ROWS = 4;  // sixteen registers
#elif defined(__x86_64__)
constexpr int BYTES = 16, ROWS = 4;
#else
constexpr int BYTES = 16, ROWS = 8;
#endif
constexpr Int LANES = BYTES / sizeof(Real), VECTORS = 3;
typedef Real Vector __attribute__((vector_size(BYTES), aligned(sizeof(Real)), may_alias));

// Codes of the operations; `array_programs.py` reads them here.
enum Code : Int {
  COPY, NEG, RELU, SIGMOID, TANH, SOFTPLUS, ERF, EXP, LOG, SQRT, ABS, SGN, RECIPROCAL,
  ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, REMAINDER, POWER, RELU_BACKWARD, SIGMOID_BACKWARD, TANH_BACKWARD,
  SOFTPLUS_BACKWARD, MULTIPLY_ADD, WHERE,
  LT, LE, EQ, NE,
  INT_COPY, INT_ADD, INT_SUB, INT_MUL, INT_REMAINDER, INT_MAXIMUM, INT_MINIMUM, INT_AND, INT_XOR, INT_SHIFT,
  INT_WHERE,
  INT_LT, INT_LE, INT_EQ, INT_NE,
  BOOL_COPY, BOOL_AND, BOOL_OR, BOOL_NOT,
  INT_TO_REAL, BOOL_TO_REAL, BOOL_TO_INT, REAL_TO_INT,
  SUM, INT_SUM,
  LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, SOFTMAX, SOFTMAX_BACKWARD,
  TAKE, WINDOWS, INT_TAKE, BOOL_TAKE, ADD_AT, GATHER, SCATTER_ADD,
  PRODUCT, CONVOLUTION, CONVOLUTION_INPUT, CONVOLUTION_WEIGHT, MAX_POOL, MAX_POOL_BACKWARD, ADAM
};

struct Operand {
  Int buffer, offset, stride[4];  // offset in bytes, strides in elements
};

struct Instruction {
  Int code, size[4];
  Operand at[6];  // first the result
};

struct Buffer {
  char* base;
  Int client_stride, step_stride;  // in bytes
};

// The values of an operation at one program point.
struct Call {
  const Instruction& in;
  char* const* base;
  template <class T> T* at(int i) const { return reinterpret_cast<T*>(base[in.at[i].buffer] + in.at[i].offset); }
  Int stride(int i, int dim) const { return in.at[i].stride[dim]; }
  Int size(int dim) const { return in.size[dim]; }
  // body(offset of every operand in elements) for all positions of the outer AXES
  template <int N, int AXES = 3, class Body> void outer(Body body) const {
    Int shift[N];
    for (Int i = 0; i < size(0); i++)
      for (Int j = 0; j < size(1); j++)
        for (Int k = 0; k < (AXES == 3 ? size(2) : 1); k++) {
          for (int n = 0; n < N; n++) shift[n] = i * stride(n, 0) + j * stride(n, 1) + k * stride(n, 2);
          body(shift);
        }
  }
};

// Elementwise operations take blocks of numbers without gaps. An operand with other strides is copied to such a block:
// rows are often shorter than a vector.
constexpr Int BLOCK = 512, SHORT = 16;

template <class T> struct Packed {
  T room[BLOCK + SHORT];
  const T* number = nullptr;  // whose value fills the first `filled` places of the room
  Int filled = 0;
  Packed() {}  // a tuple would set the room to zero

  // [rows, n] numbers
  const T* operator()(const T* from, Int row, Int column, Int rows, Int n) {
    if (column == 1 && (row == n || rows == 1)) return from;
    if (number != from || rows * n > filled) pack(from, row, column, rows, n);
    return room;
  }

  [[gnu::noinline]] void pack(const T* from, Int row, Int column, Int rows, Int n) {
    if (row == 0 && column == 0) {
      number = from, filled = rows * n;
      std::fill(room, room + filled, *from);
    } else if (column == 0 && n <= SHORT) {
      for (Int k = 0; k < rows; k++)
        for (Int i = 0; i < SHORT; i++) room[k * n + i] = from[k * row];  // over the start of the next row
    } else if (row == 0 && column == 1 && n <= SHORT) {
      T line[SHORT] = {};
      std::copy(from, from + n, line);
      for (Int k = 0; k < rows; k++) std::copy(line, line + SHORT, room + k * n);
    } else if (row == 1) {
      for (Int i = 0; i < n; i++)
        for (Int k = 0; k < rows; k++) room[k * n + i] = from[k + i * column];
    } else {
      for (Int k = 0; k < rows; k++)
        for (Int i = 0; i < n; i++) room[k * n + i] = from[k * row + i * column];
    }
  }
};

template <class T> [[gnu::noinline]] static void spread(const T* from, T* to, Int row, Int column, Int rows, Int n) {
  for (Int k = 0; k < rows; k++)
    for (Int i = 0; i < n; i++) to[k * row + i * column] = from[k * n + i];
}

template <class F, class Out, class... In> static void map_block(F f, Int n, Out* o, const In*... in) {
#pragma GCC ivdep
  for (Int i = 0; i < n; i++) o[i] = f(in[i]...);
}

// result = f(operands)
template <class Out, class... In, class F> [[gnu::noinline]] static void map(const Call& c, F f) {
  constexpr int N = 1 + sizeof...(In);
  const Int n = c.size(3), width = std::min(n, BLOCK);
  if (n == 1 && c.size(2) == 1)
    return c.outer<N, 2>([&](const Int* s) {
      int operand = 0;
      std::tuple<In...> in{(++operand, c.at<In>(operand)[s[operand]])...};
      c.at<Out>(0)[s[0]] = std::apply(f, in);
    });
  const Int height = c.size(2) == 1 ? 1 : std::max(Int(1), std::min(c.size(2), BLOCK / n));
  std::tuple<Packed<In>...> packed;
  Out room[BLOCK];
  c.outer<N, 2>([&](const Int* s) {
    for (Int k = 0; k < c.size(2); k += height)
      for (Int i = 0; i < n; i += width) {
        const Int rows = std::min(height, c.size(2) - k), count = std::min(width, n - i);
        auto at = [&](int operand) { return s[operand] + k * c.stride(operand, 2) + i * c.stride(operand, 3); };
        const Int row = c.stride(0, 2), column = c.stride(0, 3);
        const bool gaps = column != 1 || (row != count && rows > 1);
        Out* to = c.at<Out>(0) + at(0);
        int operand = 0;
        std::apply([&](Packed<In>&... part) {
          // Braces, because the order of arguments is not defined.
          std::tuple<const In*...> in{(++operand, part(c.at<In>(operand) + at(operand), c.stride(operand, 2), c.stride(operand, 3), rows, count))...};
          std::apply([&](const In*... from) { map_block(f, rows * count, gaps ? room : to, from...); }, in);
        }, packed);
        if (gaps) spread(room, to, row, column, rows, count);
      }
  });
}

// exp with an error of two units in the last place; loops over it are vectorised.
static inline float exponential(float x) {
  const float bounded = x < -87.f ? -87.f : x > 88.72f ? 88.72f : x;
  const float nearest = (bounded * 1.44269504f + 12582912.f) - 12582912.f;  // the nearest whole number
  const float n = nearest > 127.f ? 127.f : nearest;  // the largest exponent of two
  const float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const float y = p * __builtin_bit_cast(float, (static_cast<int32_t>(n) + 127) << 23);
  return x < -87.f ? 0.f : x > 88.72f ? HUGE_VALF : y;
}
static inline double exponential(double x) { return std::exp(x); }
static inline float hyperbolic(float x) {
  const float s = x * x;
  float p = -5.70498872745e-3f;
  p = p * s + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  const float near = x + x * s * p, far = 1.f - 2.f / (1.f + exponential(2.f * x));
  return s < 0.390625f ? near : far;
}
static inline double hyperbolic(double x) { return std::tanh(x); }
// With an error of 1.4e-7: a polynomial in x² up to 1, above it 1 - exp(-x²) times one in 1 / (1 + x / 2)
static inline float error_function(float x) {
  const float s = x * x, y = std::abs(x) > 4.f ? 4.f : std::abs(x), t = 1.f / (1.f + 0.5f * y);
  float p = 7.87587511e-5f;
  p = p * s - 8.0168643e-4f;
  p = p * s + 5.18908743e-3f;
  p = p * s - 2.6854212e-2f;
  p = p * s + 0.112835947f;
  p = p * s - 0.376126267f;
  p = p * s + 1.12837917f;
  float q = -0.218795737f;
  q = q * t + 0.604472074f;
  q = q * t - 0.0301791871f;
  q = q * t + 0.378711441f;
  q = q * t + 0.264432357f;
  q = q * t + 1.3318623e-3f;
  const float far = 1.f - exponential(-y * y) * q;
  return s < 1.f ? x * p : (x < 0 ? -far : far) + (x - x);
}
static inline double error_function(double x) { return std::erf(x); }
// log of a positive number that is not denormal; not finite where the number is not
static inline float logarithm(float x) {
  const int32_t bits = __builtin_bit_cast(int32_t, x), shifted = bits - 0x3f3504f3;  // sqrt(0.5)
  const float e = static_cast<float>(shifted >> 23);
  const float m = __builtin_bit_cast(float, (shifted & 0x007fffff) + 0x3f3504f3) - 1.f, z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  return m - 0.5f * z + (p * m * z - 2.12194440e-4f * e) + 0.693359375f * e + (x - x);
}
static inline double logarithm(double x) { return std::log(x); }
template <class T> static inline T logistic(T x) { return T(1) / (T(1) + exponential(-x)); }

static Real sum_of(const Real* a, Int n, Int stride) {
  Real total = 0;
  Int i = 0;
  if (stride == 1) {
    Vector parts[4] = {};
    for (; i + 4 * LANES <= n; i += 4 * LANES)
      for (int v = 0; v < 4; v++) parts[v] += *reinterpret_cast<const Vector*>(a + i + v * LANES);
    for (; i + LANES <= n; i += LANES) parts[0] += *reinterpret_cast<const Vector*>(a + i);
    const Vector all = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    for (int v = 0; v < LANES; v++) total += all[v];
  }
  for (; i < n; i++) total += a[i * stride];
  return total;
}

static Real dot(const Real* a, Int sa, const Real* b, Int sb, Int n) {
  Real total = 0;
  Int i = 0;
  if (sa == 1 && sb == 1) {
    Vector parts[2] = {};
    for (; i + LANES <= n; i += LANES)
      parts[(i / LANES) & 1] += *reinterpret_cast<const Vector*>(a + i) * *reinterpret_cast<const Vector*>(b + i);
    const Vector all = parts[0] + parts[1];
    for (int v = 0; v < LANES; v++) total += all[v];
  }
  for (; i < n; i++) total += a[i * sa] * b[i * sb];
  return total;
}

// o [n] += every row of a [rows, n]
static void sum_rows(Real* o, const Real* a, Int row, Int rows, Int n) {
  const Real* end = a + (rows - 1) * row + n;
  for (Int i = 0; i < n; i += LANES) {
    const Int width = std::min(LANES, n - i);
    Real part[LANES] = {};
    std::copy(o + i, o + i + width, part);
    Vector total = *reinterpret_cast<Vector*>(part);
    Int k = 0;
    for (; k < rows && a + k * row + i + LANES <= end; k++) total += *reinterpret_cast<const Vector*>(a + k * row + i);
    *reinterpret_cast<Vector*>(part) = total;
    for (; k < rows; k++)
      for (Int x = 0; x < width; x++) part[x] += a[k * row + i + x];
    std::copy(part, part + width, o + i);
  }
}

// result += values, over axes that the result lacks (stride 0)
static void sum(const Call& c) {
  const Int rows = c.size(2), n = c.size(3), so = c.stride(0, 3), sa = c.stride(1, 3), ro = c.stride(0, 2), ra = c.stride(1, 2);
  c.outer<2, 2>([&](const Int* s) {
    Real* o = c.at<Real>(0) + s[0];
    const Real* a = c.at<Real>(1) + s[1];
    if (so == 1 && sa == 1 && ro == 0) return sum_rows(o, a, ra, rows, n);
    Int k = 0;
    for (; so == 0 && n < LANES && k + 8 <= rows; k += 8) {
      Real total[8] = {};
      for (Int i = 0; i < n; i++)
        for (Int r = 0; r < 8; r++) total[r] += a[(k + r) * ra + i * sa];
      for (Int r = 0; r < 8; r++) o[(k + r) * ro] += total[r];
    }
    for (; k < rows; k++) {
      if (so == 0)
        o[k * ro] += sum_of(a + k * ra, n, sa);
      else
        for (Int i = 0; i < n; i++) o[k * ro + i * so] += a[k * ra + i * sa];
    }
  });
}

static void int_sum(const Call& c) {
  c.outer<2>([&](const Int* s) {
    Int* o = c.at<Int>(0) + s[0];
    const Int *a = c.at<Int>(1) + s[1], n = c.size(3), so = c.stride(0, 3), sa = c.stride(1, 3);
    Int total = 0;
    for (Int i = 0; i < n; i++) (so ? o[i * so] : total) += a[i * sa];
    if (!so) *o += total;
  });
}

// Rows [size(2), size(3)], contiguous. Sixteen rows at once, transposed: rows are often shorter than a vector.
constexpr Int TILE = 16;

template <bool LOGS> static void softmax(const Call& c) {
  const Int rows = c.size(2), n = c.size(3);
  Real* e = c.at<Real>(2);
  for (Int first = 0; first < rows; first += TILE) {
    const Int count = std::min(TILE, rows - first);
    const Real* a = c.at<Real>(1) + first * n;
    Real* o = c.at<Real>(0) + first * n;
    Real top[TILE], total[TILE] = {};
    for (Int i = 0; i < n; i++)
      for (Int r = 0; r < TILE; r++) e[i * TILE + r] = r < count ? a[r * n + i] : Real(0);
    for (Int r = 0; r < TILE; r++) top[r] = e[r];
    for (Int i = 1; i < n; i++)
      for (Int r = 0; r < TILE; r++) top[r] = e[i * TILE + r] > top[r] ? e[i * TILE + r] : top[r];
    for (Int i = 0; i < n; i++)
      for (Int r = 0; r < TILE; r++) {
        e[i * TILE + r] -= top[r];
        const Real y = exponential(e[i * TILE + r]);
        total[r] += y;
        if (!LOGS) e[i * TILE + r] = y;
      }
    for (Int r = 0; r < TILE; r++) total[r] = LOGS ? logarithm(total[r]) : 1 / total[r];
    for (Int i = 0; i < n; i++)
      for (Int r = 0; r < count; r++) o[r * n + i] = LOGS ? e[i * TILE + r] - total[r] : e[i * TILE + r] * total[r];
  }
}

template <bool LOGS> static void softmax_backward(const Call& c) {
  const Int rows = c.size(2), n = c.size(3);
  Real* o = c.at<Real>(0);
  const Real *g = c.at<Real>(1), *y = c.at<Real>(2);
#pragma GCC ivdep
  for (Int i = 0; i < rows * n; i++) o[i] = LOGS ? exponential(y[i]) : y[i];
  for (Int first = 0; first < rows; first += TILE, o += TILE * n, g += TILE * n, y += TILE * n) {
    const Int count = std::min(TILE, rows - first);
    Real total[TILE] = {};
    for (Int i = 0; i < n; i++)
      for (Int r = 0; r < count; r++) total[r] += LOGS ? g[r * n + i] : g[r * n + i] * y[r * n + i];
    for (Int r = 0; r < count; r++)
      for (Int i = 0; i < n; i++)
        o[r * n + i] = LOGS ? g[r * n + i] - o[r * n + i] * total[r] : o[r * n + i] * (g[r * n + i] - total[r]);
  }
}

struct OutOfRange {};

// A position from an index: below `count`, and from `lowest` on; negative ones count from the end.
static inline Int position(Int index, Int count, Int lowest = 0) {
  if (index >= count || index < lowest) throw OutOfRange{};
  return index < 0 ? index + count : index;
}

// result[i, :] = n values from index[i] + first on
static void windows(const Call& c) {
  const Int n = c.size(3), count = c.stride(3, 1), first = c.stride(3, 2);
  for (Int i = 0; i < c.size(2); i++) {
    const Int row = c.at<Int>(2)[i * c.stride(2, 2)] + first;
    const Real* a = c.at<Real>(1);
    Real* o = c.at<Real>(0) + i * n;
    if (n <= SHORT && i * n + SHORT <= c.size(2) * n && row >= 0 && row + SHORT <= count)
      std::copy(a + row, a + row + SHORT, o);  // over the start of the next window
    else if (row >= 0 && row + n <= count)
      for (Int x = 0; x < n; x++) o[x] = a[row + x];
    else
      for (Int x = 0; x < n; x++) o[x] = a[position(row + x, count, -count)];
  }
}

template <class T> static void take_numbers(const Call& c) {
  const Int count = c.stride(3, 1), lowest = c.stride(3, 2);
  for (Int i = 0; i < c.size(3); i++) c.at<T>(0)[i] = c.at<T>(1)[position(c.at<Int>(2)[i], count, lowest)];
}

// result[i, j, :] = values[i, index[j], :], or added to result[i, index[j], :]; index has the axes 1 and 2
template <bool INTO> static void take(const Call& c) {
  const Int n = c.size(3), count = c.stride(3, 1), lowest = c.stride(3, 2), step = c.stride(3, 3);
  for (Int i = 0; i < c.size(0); i++) {
    Real* o = c.at<Real>(0) + i * c.stride(0, 0);
    const Real* a = c.at<Real>(1) + i * c.stride(1, 0);
    const Int* index = c.at<Int>(2);
    for (Int j = 0; j < c.size(1); j++) {
      const Int row = position(index[j], count, lowest) * step;
      const Real* from = a + (INTO ? j * c.stride(1, 1) : row);
      Real* to = o + (INTO ? row : j * c.stride(0, 1));
      if (n == 1)
        *to = INTO ? *to + *from : *from;
      else
        for (Int k = 0; k < n; k++) to[k] = INTO ? to[k] + from[k] : from[k];
    }
  }
}

// result[..., i] = values[..., index[..., i]], and its transpose
template <bool INTO> static void gather(const Call& c) {
  c.outer<3>([&](const Int* s) {
    for (Int i = 0; i < c.size(3); i++) {
      const Int j = position(c.at<Int>(2)[s[2] + i * c.stride(2, 3)], c.stride(3, 3));
      if (INTO)
        c.at<Real>(0)[s[0] + j * c.stride(0, 3)] += c.at<Real>(1)[s[1] + i * c.stride(1, 3)];
      else
        c.at<Real>(0)[s[0] + i * c.stride(0, 3)] = c.at<Real>(1)[s[1] + j * c.stride(1, 3)];
    }
  });
}

// A matrix whose columns come in parts, each a `jump` behind the one before: rows of pixels below each other. Its rows
// may come in groups of `group`, too, each a `group_jump` behind the one before.
struct Matrix {
  const Real* at;
  Int row, column, jump = 0, group = 0, group_jump = 0;
  Int place(Int i) const { return group ? i / group * group_jump + i % group * row : i * row; }
};

// o [m, n] = a [m, parts * k] b + add; `b` has rows of `ldb` numbers, whose vectors are read whole.
struct Product {
  Matrix a;
  const Real* b;
  Int ldb;
  Real* o;
  Int ldo;
  const Real* add;
  Int lda, parts, k;
  Int after = 0;  // rows of the result behind these that are written later
};

// R x (C vectors) of a product, in registers, from row `first` and column `j` on; `n` columns are written. `below` rows of
// the result are written later.
template <int R, int C> static void tile(const Product& p, Int first, Int j, Int n, Int below) {
  Vector sums[R][C] = {};
  Real edge[C * LANES] = {};
  const bool whole = n == C * LANES;
  if (p.add)
    for (int r = 0; r < R; r++) {
      const Real* from = p.add + (first + r) * p.lda + j;
      if (!whole) {
        if (p.lda || !r) std::copy(from, from + n, edge);
        from = edge;
      }
      for (int v = 0; v < C; v++) sums[r][v] = *reinterpret_cast<const Vector*>(from + v * LANES);
    }
  const Int column = p.a.column, ldb = p.ldb;
  Int place[R];
  for (int r = 0; r < R; r++) place[r] = p.a.place(first + r);
  const Real *b = p.b + j, *part = p.a.at;
  for (Int s = 0; s < p.parts; s++, part += p.a.jump) {
    const Real* a = part;
    for (Int i = 0; i < p.k; i++, a += column, b += ldb) {
      Vector line[C];
      for (int v = 0; v < C; v++) line[v] = *reinterpret_cast<const Vector*>(b + v * LANES);
      for (int r = 0; r < R; r++) {
        const Real x = a[place[r]];
        for (int v = 0; v < C; v++) sums[r][v] += x * line[v];
      }
    }
  }
  for (int r = 0; r < R; r++) {
    // Where rows have no gaps between them, a row may run into the next ones.
    const bool fits = whole || (p.ldo == n && (R - r + below) * n >= C * LANES);
    Real *place = p.o + (first + r) * p.ldo + j, *to = fits ? place : edge;
    for (int v = 0; v < C; v++) *reinterpret_cast<Vector*>(to + v * LANES) = sums[r][v];
    if (!fits) std::copy(edge, edge + n, place);
  }
}

template <int C, int R> static void choose_tile(Int rows, const Product& p, Int first, Int j, Int n, Int below) {
  if constexpr (R > 0) {
    if (rows == R) return tile<R, C>(p, first, j, n, below);
    return choose_tile<C, R - 1>(rows, p, first, j, n, below);
  }
}

// `n` columns from `j` on, in tiles of about the same height
template <int C> static void columns(const Product& p, Int m, Int j, Int n) {
  constexpr int MOST = std::min<int>(16, ROWS * VECTORS / C);
  const Int count = (m + MOST - 1) / MOST;
  for (Int i = 0, first = 0; i < count; i++) {
    const Int rows = m / count + (i < m % count);
    choose_tile<C, MOST>(rows, p, first, j, n, m - first - rows + p.after);
    first += rows;
  }
}

static void multiply(const Product& p, Int m, Int n) {
  Int j = 0;
  auto run = [&](Int width, auto step) {
    for (; j + width - LANES < n; j += width) step(p, m, j, std::min(width, n - j));
  };
  run(VECTORS * LANES, columns<VECTORS>);
  run(2 * LANES, columns<2>);
  run(LANES, columns<1>);
}

static inline Int padded(Int n) { return (n + LANES - 1) / LANES * LANES; }

// result [m, n] = a [m, k] b [k, n] + add [m, n] or [n]; size is (batch, m, n, k). `scratch` holds k rows of b.
static void product(const Call& c) {
  const Int m = c.size(1), n = c.size(2), k = c.size(3), wide_n = padded(n);
  for (Int batch = 0; batch < c.size(0); batch++) {
    Real* o = c.at<Real>(0) + batch * c.stride(0, 0);
    const Matrix a = {c.at<Real>(1) + batch * c.stride(1, 0), c.stride(1, 1), c.stride(1, 3)};
    const Matrix b = {c.at<Real>(2) + batch * c.stride(2, 0), c.stride(2, 3), c.stride(2, 2)};
    const Real* add = c.in.at[3].buffer < 0 ? nullptr : c.at<Real>(3) + batch * c.stride(3, 0);
    const Int ldo = c.stride(0, 1), lda = c.stride(3, 1);
    if (n == 1 && a.column == 1 && (k == 1 || b.row == 1)) {
      for (Int i = 0; i < m; i++) o[i * ldo] = dot(a.at + i * a.row, 1, b.at, 1, k) + (add ? add[i * lda] : 0);
      continue;
    }
    const Real* rows = b.at;
    Int ldb = b.row;
    if (b.column != 1 || n % LANES) {
      Real* scratch = c.at<Real>(4);
      Int wide = 0;  // rows that can be copied with numbers behind them, in place of zeros
      if (b.column == 1 && wide_n == LANES && b.row > 0) wide = std::max(Int(0), k - (wide_n - n + b.row - 1) / b.row);
      for (Int p = 0; p < wide; p++)
        *reinterpret_cast<Vector*>(scratch + p * wide_n) = *reinterpret_cast<const Vector*>(b.at + p * b.row);
      std::fill(scratch + wide * wide_n, scratch + k * wide_n, Real(0));
      if (b.row == 1) {  // a transposed weight, four rows and columns at a time
        Int p = 0;
        for (; p + 4 <= k; p += 4) {
          Int j = 0;
          for (; j + 4 <= n; j += 4) {
            Real block[4][4];
            for (int x = 0; x < 4; x++)
              for (int y = 0; y < 4; y++) block[y][x] = b.at[p + y + (j + x) * b.column];
            for (int y = 0; y < 4; y++)
              for (int x = 0; x < 4; x++) scratch[(p + y) * wide_n + j + x] = block[y][x];
          }
          for (; j < n; j++)
            for (int y = 0; y < 4; y++) scratch[(p + y) * wide_n + j] = b.at[p + y + j * b.column];
        }
        for (; p < k; p++)
          for (Int j = 0; j < n; j++) scratch[p * wide_n + j] = b.at[p + j * b.column];
      } else {
        for (Int p = wide; p < k; p++)
          for (Int j = 0; j < n; j++) scratch[p * wide_n + j] = b.at[p * b.row + j * b.column];
      }
      rows = scratch;
      ldb = wide_n;
    }
    multiply({a, rows, ldb, o, ldo, add, lda, 1, k}, m, n);
  }
}

// --- images: [size(0), h, w, channels], without gaps; results have size(1) x size(2) places -----------------------------

// The images and the kernel of a convolution. The operands of all three: result, two factors, bias, (height, width,
// stride, padding) of the kernel, working memory.
struct Images {
  Int places_high, places_wide, out, row, channels, high, wide, kernel_high, kernel_wide, step, padding, together = 1;

  // `pixels` is the operand with the images that the kernel reads. Where results of neighbours fit into one vector they
  // are computed `together`, by a kernel with shifted copies of itself.
  Images(const Call& c, int pixels)
      : places_high(c.size(1)), places_wide(c.size(2)), out(c.size(3)), channels(c.stride(pixels, 2)),
        kernel_high(c.stride(4, 0)), kernel_wide(c.stride(4, 1)), step(c.stride(4, 2)), padding(c.stride(4, 3)) {
    wide = c.stride(pixels, 1) / channels + 2 * padding, high = c.stride(pixels, 0) / c.stride(pixels, 1) + 2 * padding;
    row = wide * channels;
  }
  Int shift() const { return step * channels; }  // from a place to the next one
  Int part() const { return kernel_wide * channels + (together - 1) * shift(); }  // numbers of a row of the kernel
  Int fan_in() const { return kernel_high * part(); }
  Int inner() const { return (wide - 2 * padding) * channels; }  // numbers of a row without padding
  Int size() const { return high * row; }
  void join_neighbours() {
    for (Int count = 2; count * out <= LANES; count++)
      if (places_wide % count == 0) together = count;
  }

  // An image with zeros around it, in `room` if there is padding.
  const Real* pad(const Real* image, Real* room) const {
    if (!padding) return image;
    std::fill(room, room + size(), Real(0));
    for (Int y = 0; y < high - 2 * padding; y++)
      std::copy(image + y * inner(), image + (y + 1) * inner(), room + (y + padding) * row + padding * channels);
    return room;
  }

  // body(position in the rows of the kernel, channel of the result, a number), strides as those of operand `i`
  template <class T, class Body> void each_weight(const Call& c, int i, Body body) const {
    for (Int o = 0; o < out; o++)
      for (Int ch = 0; ch < channels; ch++)
        for (Int y = 0; y < kernel_high; y++)
          for (Int x = 0; x < kernel_wide; x++)
            body(y * part() + x * channels + ch, o,
                 c.at<T>(i)[o * c.stride(i, 0) + ch * c.stride(i, 1) + y * c.stride(i, 2) + x * c.stride(i, 3)]);
  }
};

// images, kernel, bias: for every row of places a product of overlapping rows of pixels and the kernel
static void convolution(const Call& c) {
  Images s(c, 1);
  s.join_neighbours();
  const Int n = s.together * s.out, width = padded(n), rows = s.places_wide / s.together;
  Real *kernel = c.at<Real>(5), *bias = kernel + s.fan_in() * width, *room = bias + width;
  std::fill(kernel, room, Real(0));
  for (Int t = 0; t < s.together; t++) {
    s.each_weight<const Real>(c, 2, [&](Int row, Int o, const Real& value) {
      kernel[(row + t * s.shift()) * width + t * s.out + o] = value;
    });
    if (c.in.at[3].buffer >= 0) std::copy(c.at<Real>(3), c.at<Real>(3) + s.out, bias + t * s.out);
  }
  for (Int image = 0; image < c.size(0); image++) {
    const Real* x = s.pad(c.at<Real>(1) + image * c.stride(1, 0), room);
    for (Int y = 0; y < s.places_high; y++) {
      const Matrix pixels = {x + y * s.step * s.row, s.together * s.shift(), 1, s.row};
      const Int line = image * s.places_high + y, after = (c.size(0) * s.places_high - line - 1) * rows;
      Real* to = c.at<Real>(0) + line * s.places_wide * s.out;
      multiply({pixels, kernel, width, to, n, bias, 0, s.kernel_high, s.part(), after}, rows, n);
    }
  }
}

// the gradient of the images, from that of the result and the kernel: products of each row of places, added to the pixels
static void convolution_input(const Call& c) {
  const Images s(c, 0);
  const Int width = padded(s.fan_in());
  Real *kernel = c.at<Real>(5), *parts = kernel + s.out * width, *room = parts + s.places_wide * width;
  std::fill(kernel, parts, Real(0));
  s.each_weight<const Real>(c, 2, [&](Int row, Int o, const Real& value) { kernel[o * width + row] = value; });
  for (Int image = 0; image < c.size(0); image++) {
    Real *result = c.at<Real>(0) + image * c.stride(0, 0), *x = s.padding ? room : result;
    std::fill(x, x + s.size(), Real(0));
    for (Int y = 0; y < s.places_high; y++) {
      const Matrix grad = {c.at<Real>(1) + (image * s.places_high + y) * s.places_wide * s.out, s.out, 1};
      multiply({grad, kernel, width, parts, width, nullptr, 0, 1, s.out}, s.places_wide, width);
      for (Int place = 0; place < s.places_wide; place++)
        for (Int ky = 0; ky < s.kernel_high; ky++) {
          Real* to = x + (y * s.step + ky) * s.row + place * s.shift();
          const Real* from = parts + place * width + ky * s.part();
#pragma GCC ivdep
          for (Int i = 0; i < s.part(); i++) to[i] += from[i];
        }
    }
    if (s.padding)
      for (Int y = 0; y < s.high - 2 * s.padding; y++) {
        const Real* from = x + (y + s.padding) * s.row + s.padding * s.channels;
        std::copy(from, from + s.inner(), result + y * s.inner());
      }
  }
}

// the gradient of the kernel, from the images and the gradient of the result
static void convolution_weight(const Call& c) {
  Images s(c, 1);
  s.join_neighbours();
  const Int n = s.together * s.out, width = padded(n), rows = s.places_wide / s.together, lines = s.places_high * rows;
  Real *sums = c.at<Real>(5), *packed = sums + s.fan_in() * width, *room = packed + lines * width;
  std::fill(sums, room, Real(0));
  for (Int image = 0; image < c.size(0); image++) {
    const Real *x = s.pad(c.at<Real>(1) + image * c.stride(1, 0), room), *grad = c.at<Real>(2) + image * lines * n;
    const bool is_last = image + 1 == c.size(0);  // vectors that are read behind other images end in the next ones
    if (is_last && width != n) {
      for (Int i = 0; i < lines; i++) std::copy(grad + i * n, grad + (i + 1) * n, packed + i * width);
      grad = packed;
    }
    const Matrix pixels = {x, 1, s.together * s.shift(), s.step * s.row, s.part(), s.row};
    multiply({pixels, grad, is_last ? width : n, sums, width, sums, width, s.places_high, rows}, s.fan_in(), width);
  }
  s.each_weight<Real>(c, 0, [&](Int row, Int o, Real& value) {
    value = 0;
    for (Int t = 0; t < s.together; t++) value += sums[(row + t * s.shift()) * width + t * s.out + o];
  });
}

using Position = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;  // in an image
typedef Position Positions __attribute__((vector_size(BYTES)));
typedef Int Wide __attribute__((vector_size(LANES * sizeof(Int)), aligned(sizeof(Int)), may_alias));

// Of a window in an image the largest number, and its position, for channels from `j` on; (height, width) of the window.
static void pool_window(const Call& c, Int image, Int first, Int j, Int place) {
  const Int n = c.size(3), wide = c.stride(2, 1) / n, width = std::min(LANES, n - j);
  const Int numbers = c.size(0) * c.stride(2, 0), results = c.size(0) * c.size(1) * c.size(2) * n;
  Vector best = {};
  Positions where = {};
  for (Int ky = 0; ky < c.stride(4, 0); ky++)
    for (Int kx = 0; kx < c.stride(4, 1); kx++) {
      const Int position = first + ky * wide + kx, from = image * c.stride(2, 0) + position * n + j;
      Real edge[LANES] = {};
      const bool whole = from + LANES <= numbers;
      const Real* at = c.at<Real>(2) + from;
      if (!whole) std::copy(at, at + width, edge);
      const Vector value = *reinterpret_cast<const Vector*>(whole ? at : edge);
      const Positions here = Positions{} + static_cast<Position>(position);
      const Positions larger = (value > best) | (value != value);
      best = ky || kx ? larger ? value : best : value;
      where = ky || kx ? larger ? here : where : here;
    }
  const Wide index = __builtin_convertvector(where, Wide);
  Real* to = c.at<Real>(0) + place + j;
  Int* to_index = c.at<Int>(1) + place + j;
  if (place + j + LANES <= results) {  // over the next place, which comes later
    *reinterpret_cast<Vector*>(to) = best;
    *reinterpret_cast<Wide*>(to_index) = index;
  } else {
    for (Int i = 0; i < width; i++) to[i] = best[i], to_index[i] = index[i];
  }
}

// The largest number of a window, and its position in the image; images, (height, width, stride, 0) of the windows.
static void max_pool(const Call& c) {
  const Int n = c.size(3), wide = c.stride(2, 1) / n, step = c.stride(4, 2);
  Int place = 0;
  for (Int image = 0; image < c.size(0); image++)
    for (Int y = 0; y < c.size(1); y++)
      for (Int x = 0; x < c.size(2); x++, place += n)
        for (Int j = 0; j < n; j += LANES) pool_window(c, image, y * step * wide + x * step, j, place);
}

// the gradient of the images, from that of the windows and their positions
static void max_pool_backward(const Call& c) {
  const Int n = c.size(3), places = c.size(1) * c.size(2);
  for (Int image = 0; image < c.size(0); image++) {
    Real* result = c.at<Real>(0) + image * c.stride(0, 0);
    std::fill(result, result + c.stride(0, 0), Real(0));
    for (Int place = image * places; place < (image + 1) * places; place++)
      for (Int i = place * n; i < (place + 1) * n; i++)
        result[c.at<Int>(2)[i] * n + i - place * n] += c.at<Real>(1)[i];
  }
}

// parameters, gradient, two moments, number of steps, (lr, beta1, beta2, weight decay, eps)
static void adam(const Call& c) {
  const Int n = c.size(3);
  Real *w = c.at<Real>(0), *m = c.at<Real>(2), *v = c.at<Real>(3);
  const Real *g = c.at<Real>(1), *h = c.at<Real>(5);
  const double t = *c.at<Real>(4), lr = h[0], root = std::sqrt(1 - std::pow(double(h[2]), t));
  const Real b1 = h[1], b2 = h[2], decay = h[3], eps = h[4];
  const Real rate = lr / (1 - std::pow(double(h[1]), t)), scale = 1 / root;
#pragma GCC ivdep
  for (Int i = 0; i < n; i++) {
    const Real slope = g[i] + decay * w[i];
    m[i] += (1 - b1) * (slope - m[i]);
    v[i] = b2 * v[i] + (1 - b2) * slope * slope;
    w[i] -= rate * m[i] / (std::sqrt(v[i]) * scale + eps);
  }
}

static void execute(const Call& c) {
#define UNARY(CODE, OUT, IN, VALUE) case CODE: return map<OUT, IN>(c, [](IN x) -> OUT { return VALUE; });
#define BINARY(CODE, OUT, IN, VALUE) case CODE: return map<OUT, IN, IN>(c, [](IN x, IN y) -> OUT { return VALUE; });
#define TERNARY(CODE, OUT, IN, VALUE) case CODE: return map<OUT, IN, OUT, OUT>(c, [](IN x, OUT y, OUT z) -> OUT { return VALUE; });
  switch (c.in.code) {
    UNARY(COPY, Real, Real, x)
    UNARY(NEG, Real, Real, -x)
    UNARY(RELU, Real, Real, x < 0 ? 0 : x)
    UNARY(SIGMOID, Real, Real, logistic(x))
    UNARY(TANH, Real, Real, hyperbolic(x))
    UNARY(SOFTPLUS, Real, Real, x > 20 ? x : std::log1p(exponential(x)))
    UNARY(ERF, Real, Real, error_function(x))
    UNARY(EXP, Real, Real, exponential(x))
    UNARY(LOG, Real, Real, std::log(x))
    UNARY(SQRT, Real, Real, std::sqrt(x))
    UNARY(ABS, Real, Real, std::abs(x))
    UNARY(SGN, Real, Real, Real((x > 0) - (x < 0)))
    UNARY(RECIPROCAL, Real, Real, 1 / x)
    BINARY(ADD, Real, Real, x + y)
    BINARY(SUB, Real, Real, x - y)
    BINARY(MUL, Real, Real, x * y)
    BINARY(DIV, Real, Real, x / y)
    BINARY(MAXIMUM, Real, Real, x != x || x > y ? x : y)
    BINARY(MINIMUM, Real, Real, x != x || x < y ? x : y)
    BINARY(REMAINDER, Real, Real, x - std::floor(x / y) * y)
    BINARY(POWER, Real, Real, std::pow(x, y))
    BINARY(RELU_BACKWARD, Real, Real, y <= 0 ? 0 : x)
    BINARY(SIGMOID_BACKWARD, Real, Real, x * (1 - y) * y)
    BINARY(TANH_BACKWARD, Real, Real, x * (1 - y * y))
    BINARY(SOFTPLUS_BACKWARD, Real, Real, y > 20 ? x : x * logistic(y))
    TERNARY(MULTIPLY_ADD, Real, Real, x + y * z)
    TERNARY(WHERE, Real, Bool, x ? y : z)
    BINARY(LT, Bool, Real, x < y)
    BINARY(LE, Bool, Real, x <= y)
    BINARY(EQ, Bool, Real, x == y)
    BINARY(NE, Bool, Real, x != y)
    UNARY(INT_COPY, Int, Int, x)
    BINARY(INT_ADD, Int, Int, x + y)
    BINARY(INT_SUB, Int, Int, x - y)
    BINARY(INT_MUL, Int, Int, x * y)
    BINARY(INT_REMAINDER, Int, Int, (x % y + y) % y)
    BINARY(INT_MAXIMUM, Int, Int, x > y ? x : y)
    BINARY(INT_MINIMUM, Int, Int, x < y ? x : y)
    BINARY(INT_AND, Int, Int, x & y)
    BINARY(INT_XOR, Int, Int, x ^ y)
    BINARY(INT_SHIFT, Int, Int, x >> y)
    TERNARY(INT_WHERE, Int, Bool, x ? y : z)
    BINARY(INT_LT, Bool, Int, x < y)
    BINARY(INT_LE, Bool, Int, x <= y)
    BINARY(INT_EQ, Bool, Int, x == y)
    BINARY(INT_NE, Bool, Int, x != y)
    UNARY(BOOL_COPY, Bool, Bool, x)
    BINARY(BOOL_AND, Bool, Bool, x & y)
    BINARY(BOOL_OR, Bool, Bool, x | y)
    UNARY(BOOL_NOT, Bool, Bool, !x)
    UNARY(INT_TO_REAL, Real, Int, Real(x))
    UNARY(BOOL_TO_REAL, Real, Bool, x)
    UNARY(BOOL_TO_INT, Int, Bool, x)
    UNARY(REAL_TO_INT, Int, Real, Int(x))
    case SUM: return sum(c);
    case INT_SUM: return int_sum(c);
    case LOG_SOFTMAX: return softmax<true>(c);
    case LOG_SOFTMAX_BACKWARD: return softmax_backward<true>(c);
    case SOFTMAX: return softmax<false>(c);
    case SOFTMAX_BACKWARD: return softmax_backward<false>(c);
    case TAKE: return take<false>(c);
    case WINDOWS: return windows(c);
    case INT_TAKE: return take_numbers<Int>(c);
    case BOOL_TAKE: return take_numbers<Bool>(c);
    case ADD_AT: return take<true>(c);
    case GATHER: return gather<false>(c);
    case SCATTER_ADD: return gather<true>(c);
    case PRODUCT: return product(c);
    case CONVOLUTION: return convolution(c);
    case CONVOLUTION_INPUT: return convolution_input(c);
    case CONVOLUTION_WEIGHT: return convolution_weight(c);
    case MAX_POOL: return max_pool(c);
    case MAX_POOL_BACKWARD: return max_pool_backward(c);
    case ADAM: return adam(c);
  }
}

// Runs `steps` steps of each client. A step whose `rows` (a buffer of `width` positions, or -1) are all negative is left
// out. `current` has a place for every buffer. Returns whether all indices were in range; it stops at the first other one.
extern "C" int run(const Instruction* code, Int count, const Buffer* buffers, char** current, Int buffer_count,
                   Int clients, Int steps, Int rows, Int width) try {
  for (Int client = 0; client < clients; client++)
    for (Int step = 0; step < steps; step++) {
      for (Int i = 0; i < buffer_count; i++)
        current[i] = buffers[i].base + client * buffers[i].client_stride + step * buffers[i].step_stride;
      if (rows >= 0) {
        const Int* first = reinterpret_cast<const Int*>(current[rows]);
        if (std::all_of(first, first + width, [](Int row) { return row < 0; })) continue;
      }
      for (Int i = 0; i < count; i++) execute({code[i], current});
    }
  return 1;
} catch (const OutOfRange&) {
  return 0;
}
