# Read by llama.cpp's build where it begins ggml: the arithmetic keeps full optimisation, whatever the rest is compiled with, and
# each of its sources is compiled alone.
string(APPEND CMAKE_C_FLAGS_RELEASE " -O3")
string(APPEND CMAKE_CXX_FLAGS_RELEASE " -O3")
set(CMAKE_UNITY_BUILD OFF)
