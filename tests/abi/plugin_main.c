/* The command `tenon plugin` alone, for its test. */
#include "../../tools/tool.h"

int main(int argc, char **argv)
{
    return tenon_plugin_main(argc, argv);
}
