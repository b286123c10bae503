// The greedy answer of llama.cpp to a prompt, on one thread, without flash attention, keys and
// values in F32.
//
//     answers FILE PROMPT COUNT [VECTORS STRENGTH]
//
// VECTORS is a file of control vectors, which llama.cpp's own function reads: control_vectors.inc has
// its text, since the library of that function takes minutes to compile. Written to the standard
// output: the answer, of up to COUNT tokens.

#include "common.h"
#include "gguf.h"
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define LOG_ERR(...) std::fprintf(stderr, __VA_ARGS__)
#define LOG_WRN(...) std::fprintf(stderr, __VA_ARGS__)
#include "control_vectors.inc"

[[noreturn]] static void fail(const char * what) {
    std::fprintf(stderr, "answers: %s\n", what);
    std::exit(1);
}

static std::vector<llama_token> tokens_of(const llama_vocab * vocab, const std::string & text) {
    std::vector<llama_token> tokens(text.size() + 8);
    const int size = (int) tokens.size();
    const int count =
        llama_tokenize(vocab, text.data(), (int) text.size(), tokens.data(), size, true, true);
    if (count < 1) {
        fail("the prompt has no tokens");
    }
    tokens.resize(count);
    return tokens;
}

static void steer(llama_context * ctx, const char * file, float strength) {
    const common_control_vector_data read = common_control_vector_load({ { strength, file } });
    const int layers = llama_model_n_layer(llama_get_model(ctx));
    if (read.n_embd < 0 || llama_set_adapter_cvec(ctx, read.data.data(), read.data.size(),
                                                  read.n_embd, 1, layers)) {
        fail("the control vectors are refused");
    }
}

int main(int count, char ** arguments) {
    if (count != 4 && count != 6) {
        fail("see the head of its source");
    }
    llama_backend_init();
    llama_model_params of_file = llama_model_default_params();
    of_file.n_gpu_layers = 0;
    llama_model * model = llama_model_load_from_file(arguments[1], of_file);
    if (!model) {
        fail("the model is refused");
    }
    llama_context_params params = llama_context_default_params();
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    llama_context * ctx = llama_init_from_model(model, params);
    if (!ctx) {
        fail("there is no context");
    }
    if (count == 6) {
        steer(ctx, arguments[4], std::strtof(arguments[5], nullptr));
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    std::vector<llama_token> next = tokens_of(vocab, arguments[2]);
    if (llama_model_has_encoder(model)) {
        if (llama_encode(ctx, llama_batch_get_one(next.data(), (int) next.size()))) {
            fail("the prompt cannot be encoded");
        }
        next = { llama_model_decoder_start_token(model) };
    }
    llama_sampler * greedy = llama_sampler_init_greedy();
    for (int left = std::atoi(arguments[3]); left > 0; left--) {
        if (llama_decode(ctx, llama_batch_get_one(next.data(), (int) next.size()))) {
            fail("a token cannot be computed");
        }
        next = { llama_sampler_sample(greedy, ctx, -1) };
        if (llama_vocab_is_eog(vocab, next[0])) {
            break;
        }
        char piece[256];
        const int size = llama_token_to_piece(vocab, next[0], piece, sizeof piece, 0, false);
        if (size < 0) {
            fail("a token has more than 256 bytes");
        }
        std::fwrite(piece, 1, size, stdout);
    }
    std::fflush(stdout);
    std::_Exit(0);
}
