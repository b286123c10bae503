/* Ends of products: activation(x + bias) * factor + residual, element by element. A family brings vectors of VEC
   floats.

   All activations but ReLU are max(x, 0) - a * tail(a) of a = |x|, where tail is 1 - sigmoid of something, or the
   normal distribution's upper tail. Each step is rounded once, as written here: the bits are those of every family.
   Beside exact functions the error is at most 4 units in the last place of x, and 3e-6 of a result above 1e-6
   (tests/ml/test_endings.py). */

#define LARGEST 1e4f /* behind it a tail is 0 */

/* 1 - sigmoid(y), of y from 0 on. */
INLINE vec sigmoid_tail(vec minus_y) {
    vec e = exponential(minus_y);
    return div_vec(e, add_vec(vec_of(1.0f), e));
}

/* The upper tail of the normal distribution from a: e^(-a^2 / 2) times a polynomial of t = 1 / (1 + 0.26 a), which
   was fitted to it for a up to 14, with a relative error of 2.5e-8. */
INLINE vec normal_tail(vec a) {
    vec t = div_vec(vec_of(1.0f), fma_vec(a, vec_of(0.26f), vec_of(1.0f)));
    vec p = vec_of(3.0504941813e-2f);
    p = fma_vec(p, t, vec_of(-1.5282910057e-1f));
    p = fma_vec(p, t, vec_of(2.5149185669e-1f));
    p = fma_vec(p, t, vec_of(-1.5094960549e-1f));
    p = fma_vec(p, t, vec_of(1.6094829036e-1f));
    p = fma_vec(p, t, vec_of(5.1027502050e-2f));
    p = fma_vec(p, t, vec_of(1.0303029807e-1f));
    p = fma_vec(p, t, vec_of(1.0301674455e-1f));
    p = fma_vec(p, t, vec_of(1.0375906016e-1f));
    return mul_vec(mul_vec(p, t), exponential(mul_vec(mul_vec(a, a), vec_of(-0.5f))));
}

INLINE vec activated(vec x, enum activation activation) {
    vec positive = max_vec(x, vec_of(0)), a = min_vec(abs_vec(x), vec_of(LARGEST)), tail;
    switch (activation) {
        case NO_ACTIVATION: return x;
        case RELU: return positive;
        case GELU: { /* its tanh form: sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) */
            vec factor = fma_vec(mul_vec(a, a), vec_of(-0x1.2444f2p-4f), vec_of(-0x1.988454p+0f));
            tail = sigmoid_tail(mul_vec(a, factor));
            break;
        }
        case GELU_ERF: tail = normal_tail(a); break;
        case QUICK_GELU: tail = sigmoid_tail(mul_vec(a, vec_of(-1.702f))); break;
        default: tail = sigmoid_tail(mul_vec(a, vec_of(-1.0f)));
    }
    positive = max_vec(vec_of(0), x); /* NaN stays NaN */
    return sub_vec(positive, mul_vec(a, tail));
}

/* The elements of an operand from number i on, which may be left out. */
INLINE const float * operand_at(const float * operand, int i) {
    return operand ? operand + i : NULL;
}

/* VEC elements. */
INLINE void finish_vec(const float * x, struct operands of, enum activation activation, float * to) {
    vec y = load_vec(x);
    y = activated(of.bias ? add_vec(y, load_vec(of.bias)) : y, activation);
    y = of.factor ? mul_vec(y, load_vec(of.factor)) : y;
    store_vec(to, of.residual ? add_vec(y, load_vec(of.residual)) : y);
}

INLINE void finish_by(const float * x, struct operands of, enum activation activation, int n, float * to) {
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
        struct operands these = {operand_at(of.bias, i), operand_at(of.factor, i), operand_at(of.residual, i)};
        finish_vec(x + i, these, activation, to + i);
    }
    if (i < n) {
        float padded[4][VEC] = {{0}};
        const float * operands[] = {x, of.bias, of.factor, of.residual};
        for (int o = 0; o < 4; o++) {
            if (operands[o]) {
                memcpy(padded[o], operands[o] + i, (n - i) * sizeof(float));
                operands[o] = padded[o];
            }
        }
        finish_vec(padded[0], (struct operands) {operands[1], operands[2], operands[3]}, activation, padded[0]);
        memcpy(to + i, padded[0], (n - i) * sizeof(float));
    }
}

TARGET static void finish(const float * x, const struct operands * of, enum activation activation, int n, float * to) {
    switch (activation) {
        case NO_ACTIVATION: finish_by(x, *of, NO_ACTIVATION, n, to); break;
        case RELU: finish_by(x, *of, RELU, n, to); break;
        case GELU: finish_by(x, *of, GELU, n, to); break;
        case GELU_ERF: finish_by(x, *of, GELU_ERF, n, to); break;
        case QUICK_GELU: finish_by(x, *of, QUICK_GELU, n, to); break;
        case SILU: finish_by(x, *of, SILU, n, to); break;
    }
}
