/* Each public header stands alone, in C and in C++, and says no more than
 * ISO C needs. Compiled only. */
#include "tracerd/client.h"
#include "tracerd/stats.h"
/* twice does no harm */
#include "tracerd/base.h"
#include "tracerd/client.h"
#include "tracerd/record.h"
#include "tracerd/stats.h"

int main(void)
{
    return trd_strerror(0) == NULL || trd_version() == NULL;
}
