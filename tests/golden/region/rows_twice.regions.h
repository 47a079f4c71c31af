/* The regions of one program; region.c describes the entries of each. */
#ifndef TW_REGIONS_H
#define TW_REGIONS_H

#include "tilewright_rt.h"

/* npu, 2 kernel calls */
#define TW_REGION_3_ENTRIES 4
int tw_region_3(tw_machine *m, unsigned char *const *entry);

#endif
