/* The command `tenon plugin` alone, for its test. */
int tenon_plugin_main(int argc, char **argv);

int main(int argc, char **argv)
{
    return tenon_plugin_main(argc, argv);
}
