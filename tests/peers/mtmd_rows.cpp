// Rows that libmtmd of llama.cpp makes of pictures and sounds, on one thread, without flash attention.
//
//     mtmd_rows prepared MMPROJ KIND ITEM...         each item alone: the values of a tower
//     mtmd_rows whole MMPROJ KIND TEXT PROMPT ITEM...  a prompt with a marker, <__media__>, for each item
//
// KIND is image or audio. An item is a file: int32 width, height and count, then the values. A
// prepared one has float32 [count, height, width, 3], where several are frames of one moment, or
// [bands, frames] with the bands as height; for `whole` these are uint8 [height, width, 3], or
// float32 [samples] with a height of 1.
//
// Written to the standard output, for each item or each part of the prompt: int32 kind (0: tokens,
// 1: rows), int32 count, int32 width, then int32 [count] or float32 [count, width].

#include "clip-impl.h"
#include "clip.h"
#include "llama.h"
#include "mtmd.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

struct item {
    int32_t width, height, count;
    std::vector<char> data;
};

[[noreturn]] static void fail(const char * what) {
    std::fprintf(stderr, "mtmd_rows: %s\n", what);
    std::exit(1);
}

static item read(const char * path) {
    std::ifstream file(path, std::ios::binary);
    item found;
    file.read((char *) &found.width, sizeof(int32_t));
    file.read((char *) &found.height, sizeof(int32_t));
    file.read((char *) &found.count, sizeof(int32_t));
    if (!file) {
        fail("an item cannot be read");
    }
    found.data.assign(std::istreambuf_iterator<char>(file), {});
    return found;
}

static void write(int32_t kind, size_t count, size_t width, const void * values) {
    const int32_t head[] = { kind, (int32_t) count, (int32_t) width };
    std::fwrite(head, sizeof(int32_t), 3, stdout);
    std::fwrite(values, 4, count * width, stdout);
}

static void prepared(const char * mmproj, bool audio, const std::vector<item> & items) {
    clip_context_params params = {};
    params.flash_attn_type = CLIP_FLASH_ATTN_TYPE_DISABLED;
    params.image_min_tokens = params.image_max_tokens = -1;
    const clip_init_result loaded = clip_init(mmproj, params);
    clip_ctx * ctx = audio ? loaded.ctx_a : loaded.ctx_v;
    if (!ctx) {
        fail("no such tower");
    }
    for (const item & one : items) {
        clip_image_f32_batch batch;
        batch.is_audio = audio;
        const float * values = (const float *) one.data.data();
        const size_t each = one.data.size() / sizeof(float) / one.count;
        for (int i = 0; i < one.count; i++, values += each) {
            batch.entries.emplace_back();
            batch.entries.back().set_size({ one.width, one.height }, false, audio);
            batch.entries.back().cpy_buf(std::vector<float>(values, values + each));
        }
        const size_t count = clip_n_output_tokens(ctx, &batch.entries[0]);
        const size_t width = clip_n_mmproj_embd(ctx);
        std::vector<float> rows(count * width);
        if (!clip_image_batch_encode(ctx, 1, &batch, rows)) {
            fail("the item cannot be encoded");
        }
        write(1, count, width, rows.data());
    }
}

static void whole(const char * mmproj, bool audio, const char * text, const char * prompt,
                  const std::vector<item> & items) {
    llama_backend_init();
    llama_model_params of_text = llama_model_default_params();
    of_text.n_gpu_layers = 0;
    llama_model * model = llama_model_load_from_file(text, of_text);
    if (!model) {
        fail("the text model is refused");
    }
    mtmd_context_params params = mtmd_context_params_default();
    params.use_gpu = params.print_timings = params.warmup = false;
    params.n_threads = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    mtmd_context * ctx = mtmd_init_from_file(mmproj, model, params);
    if (!ctx) {
        fail("the mmproj file is refused");
    }
    std::vector<const mtmd_bitmap *> bitmaps;
    for (const item & one : items) {
        bitmaps.push_back(audio
            ? mtmd_bitmap_init_from_audio(one.width, (const float *) one.data.data())
            : mtmd_bitmap_init(one.width, one.height, (const unsigned char *) one.data.data()));
    }
    const std::string said = prompt;
    const mtmd_input_text input = { said.data(), said.size(), false, true };
    mtmd_input_chunks * chunks = mtmd_input_chunks_init();
    if (mtmd_tokenize(ctx, chunks, &input, bitmaps.data(), bitmaps.size()) != 0) {
        fail("the prompt is refused");
    }
    for (size_t i = 0; i < mtmd_input_chunks_size(chunks); i++) {
        const mtmd_input_chunk * chunk = mtmd_input_chunks_get(chunks, i);
        size_t count = 0;
        if (const llama_token * tokens = mtmd_input_chunk_get_tokens_text(chunk, &count); count) {
            write(0, count, 1, tokens);
        } else if (mtmd_encode_chunk(ctx, chunk) == 0) {
            const int width = llama_model_n_embd_inp(model);
            write(1, mtmd_input_chunk_get_n_tokens(chunk), width, mtmd_get_output_embd(ctx));
        } else {
            fail("a part of the prompt cannot be encoded");
        }
    }
}

int main(int count, char ** arguments) {
    const std::string mode = count > 3 ? arguments[1] : "";
    const bool audio = count > 3 && arguments[3] == std::string("audio");
    const int first = mode == "whole" ? 6 : 4;
    if ((mode != "whole" && mode != "prepared") || count <= first) {
        fail("see the head of its source");
    }
    std::vector<item> items;
    for (int i = first; i < count; i++) {
        items.push_back(read(arguments[i]));
    }
    if (mode == "whole") {
        whole(arguments[2], audio, arguments[4], arguments[5], items);
    } else {
        prepared(arguments[2], audio, items);
    }
    std::fflush(stdout);
    std::_Exit(0);
}
