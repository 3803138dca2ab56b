/* Modules with variants: what is found by which handle, and when a variant is not used any more. */
#include "hook/slice/modules.h"
#include "tests/hook_setup.h"

static const char TEXT[] = ".version 8.4\n.target sm_80\n.address_size 64\n.entry one() { ret; }\n.entry two() { ret; }\n"
                           ".entry three() { .reg .b32 %r1; mov.u32 %r1, %gridid; ret; }\n";

static void load(uintptr_t owner, int is_library, int is_refused)
{
    struct ct_slice_text text = {0};
    EXPECT(ct_ptx_rewrite(TEXT, sizeof TEXT - 1, &text.module));
    text.text = text.module.text;
    if (is_refused)
        ct_slice_refused(&text, NULL);
    ct_slice_loaded(&text, owner, is_library);
    EXPECT(!text.module.count && !text.module.text);
}

static void kernels_belong_to_their_module(void)
{
    load(1, 0, 0);
    load(2, 1, 0);
    ct_slice_add_module(3, 2);
    EXPECT(ct_slice_find(1, "one") && ct_slice_find(2, "one") != ct_slice_find(1, "one"));
    EXPECT(ct_slice_find(3, "one") == ct_slice_find(2, "one"));
    EXPECT(!ct_slice_find(1, "four") && !ct_slice_find(4, "one"));
    EXPECT(ct_slice_find(1, "three")->kernel->reason == CT_PTX_GRID_IDENTITY);
    EXPECT(ct_slice_is_possible(ct_slice_find(1, "one")) && !ct_slice_is_possible(ct_slice_find(1, "three")));
    EXPECT_EQ(ct_slice_variant_count(1), 2);
    EXPECT_EQ(ct_slice_variant_count(3), 2);
    EXPECT_EQ(ct_slice_owner(3), 2);
    EXPECT_EQ(ct_slice_owner(1), 1);
    ct_slice_unload(2);
    EXPECT(!ct_slice_find(2, "one") && !ct_slice_find(3, "one") && ct_slice_find(1, "one"));
    EXPECT_EQ(ct_slice_variant_count(3), 0);
    ct_slice_unload(1);
}

static void a_refused_text_has_reasons_and_no_variants(void)
{
    load(1, 0, 1);
    EXPECT_EQ(ct_slice_variant_count(1), 0);
    EXPECT(ct_slice_find(1, "one") && !ct_slice_is_possible(ct_slice_find(1, "one")));
    ct_slice_unload(1);
}

/* A context that ends frees its modules, whose handles the driver then uses again. */
static void a_handle_that_is_used_again_has_nothing_of_the_old_module(void)
{
    struct ct_slice_text machine_code = {0};
    load(1, 0, 0);
    ct_slice_loaded(&machine_code, 1, 0);
    EXPECT(!ct_slice_find(1, "one"));
    EXPECT_EQ(ct_slice_variant_count(1), 0);
    load(1, 0, 1);
    load(1, 0, 0);
    EXPECT_EQ(ct_slice_variant_count(1), 2);
    ct_slice_add_module(1, 9); /* the module of a library without variants */
    EXPECT(!ct_slice_find(1, "one"));
}

static int state_after(uint64_t variant_ns)
{
    struct ct_slice slice = {0};
    for (int i = 0; i < CT_SLICE_MEASUREMENTS; i++) {
        EXPECT_EQ(load_relaxed(&slice.state), CT_SLICE_NEW);
        ct_slice_measured(&slice, variant_ns, 1000000);
    }
    return load_relaxed(&slice.state);
}

static void a_variant_that_is_slower_by_more_than_five_percent_is_not_used(void)
{
    EXPECT_EQ(state_after(1040000), CT_SLICE_NEW);
    EXPECT_EQ(state_after(900000), CT_SLICE_NEW);
    EXPECT_EQ(state_after(1060000), CT_SLICE_SLOWER);
}

int main(void)
{
    kernels_belong_to_their_module();
    a_refused_text_has_reasons_and_no_variants();
    a_handle_that_is_used_again_has_nothing_of_the_old_module();
    a_variant_that_is_slower_by_more_than_five_percent_is_not_used();
    return 0;
}
