#include <asyncrl/version.hpp>
int main() { return ASYNCRL_VERSION_MAJOR; }
