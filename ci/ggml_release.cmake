# Read by llama.cpp's build where it begins ggml: the arithmetic keeps full optimisation, whatever the rest is compiled with.
string(APPEND CMAKE_C_FLAGS_RELEASE " -O3")
string(APPEND CMAKE_CXX_FLAGS_RELEASE " -O3")
