// In the place of libcuda.so.1: a driver that is older than the CUDA runtime of the program.
extern "C" {

int cuDriverGetVersion(int* version);
int cuInit(unsigned flags);

int cuDriverGetVersion(int* version) {
  *version = 11040;  // CUDA 11.4
  return 0;
}
int cuInit(unsigned) { return 0; }
}
