# Read by llama.cpp's build where it begins: sources of a target are compiled together, in half the time, since most of it goes into
# headers that all of them read. Alone stand common/json.cpp, which specialises a template that the others use, and mtmd, where
# what is public refuses to stand beside what is not.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 10)
cmake_language(DEFER CALL set_source_files_properties "${CMAKE_SOURCE_DIR}/common/json.cpp" DIRECTORY common
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
cmake_language(DEFER CALL set_target_properties mtmd PROPERTIES UNITY_BUILD OFF)
