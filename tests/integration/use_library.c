/* An application on tilewright.h: inputs from one file, two sessions in two threads each way, the
 * outputs of all four into another file.  `plain DIGEST IN OUT` */
#include "tilewright.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNS 4

static const tw_model *shared;
static unsigned char *given;
static unsigned char *made[RUNS];

static void check(int code, const tw_error *error)
{
    if (code == TW_OK) return;
    fprintf(stderr, "%s at %s: %s\n", error->id, error->pointer, error->message);
    exit(1);
}

static void *use(void *number)
{
    unsigned char *in = given, *out = made[*(int *)number];
    tw_session *session;
    tw_error error;
    tw_value value;
    check(tw_session_create(shared, TW_WHOLE_MODEL, &session, &error), &error);
    for (int32_t k = 0; k < tw_num_inputs(shared, TW_WHOLE_MODEL); ++k) {
        check(tw_input(shared, TW_WHOLE_MODEL, k, &value, &error), &error);
        check(tw_bind(session, value.name, in, value.bytes, &error), &error);
        in += value.bytes;
    }
    for (int32_t k = 0; k < tw_num_outputs(shared, TW_WHOLE_MODEL); ++k) {
        check(tw_output(shared, TW_WHOLE_MODEL, k, &value, &error), &error);
        check(tw_bind(session, value.name, out, value.bytes, &error), &error);
        out += value.bytes;
    }
    for (int round = 0; round < 3; ++round) check(tw_run(session, &error), &error);
    tw_session_free(session);
    return NULL;
}

static int64_t all_bytes(int32_t (*count)(const tw_model *, int32_t),
                         int (*get)(const tw_model *, int32_t, int32_t, tw_value *, tw_error *))
{
    int64_t sum = 0;
    tw_error error;
    tw_value value;
    for (int32_t k = 0; k < count(shared, TW_WHOLE_MODEL); ++k) {
        check(get(shared, TW_WHOLE_MODEL, k, &value, &error), &error);
        sum += value.bytes;
    }
    return sum;
}

int main(int count, char **argument)
{
    pthread_t threads[RUNS];
    int numbers[RUNS];
    tw_model *model;
    tw_error error;
    FILE *file;
    if (count != 4) return 2;
    check(tw_open(TW_API_VERSION, argument[1], &model, &error), &error);
    shared = model;
    {
        const int64_t in = all_bytes(tw_num_inputs, tw_input);
        const int64_t out = all_bytes(tw_num_outputs, tw_output);
        given = malloc((size_t)in); /* not one byte more: a sanitizer sees what reads past it */
        file = fopen(argument[2], "rb");
        if (!given || !file || fread(given, 1, (size_t)in, file) != (size_t)in) return 3;
        fclose(file);
        for (int k = 0; k < RUNS; ++k) {
            numbers[k] = k;
            made[k] = malloc((size_t)out);
            if (!made[k] || pthread_create(threads + k, NULL, use, numbers + k)) return 4;
        }
        file = fopen(argument[3], "wb");
        if (!file) return 5;
        for (int k = 0; k < RUNS; ++k) {
            pthread_join(threads[k], NULL);
            fwrite(made[k], 1, (size_t)out, file);
            free(made[k]);
        }
    }
    fclose(file);
    free(given);
    tw_close(model);
    return 0;
}
