// Eigen with the same bits on every machine: sums have one order, whatever the width of vectors,
// the size of the caches and the number of cores. The namespace keeps this code apart from the
// Eigen of a program that links the library and compiles Eigen with other flags. Included by .cc
// files alone.
#ifndef QLORA_ADAPTER_PORTABLE_EIGEN_H_
#define QLORA_ADAPTER_PORTABLE_EIGEN_H_

#define EIGEN_DONT_VECTORIZE
#define EIGEN_NO_CPUID
#define EIGEN_DONT_PARALLELIZE
#define Eigen qlora_eigen
#include <Eigen/QR>
#include <Eigen/SVD>

#endif  // QLORA_ADAPTER_PORTABLE_EIGEN_H_
