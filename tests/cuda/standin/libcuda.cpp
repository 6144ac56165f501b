// The stand-in for libcuda in one piece: its parts read the same headers, once.
#include "copies.cpp"
#include "driver.cpp"
#include "memory.cpp"
#include "modules.cpp"
#include "queue.cpp"
#include "streams.cpp"
