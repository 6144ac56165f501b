// The table of kernels at the end of a compiled text. What a kernel takes is asked of its type.
// With no header but that of the language: it is compiled with the text.
#pragma once
#include "language.h"

namespace standin {
struct Parameter {
  unsigned bytes;
  bool is_pointer;
};

struct Kernel {
  const char* name;
  void (*function)();
  void (*call)(void (*function)(), void** parameters);
  const Parameter* parameters;
  unsigned count;
  // Where its threads look for their numbers.
  shim::Place* (*place)();
  // Whether its threads may wait for each other, and how many a block may have (0: any number).
  bool has_barriers;
  unsigned most_threads;
};

template <class T>
struct Is {
  static const bool pointer = false;
};
template <class T>
struct Is<T*> {
  static const bool pointer = true;
};

template <unsigned... I>
struct Numbers {};
template <unsigned N, unsigned... I>
struct Below : Below<N - 1, N - 1, I...> {};
template <unsigned... I>
struct Below<0, I...> {
  typedef Numbers<I...> Type;
};

template <class... A>
struct Taking {
  // One more than there are, so that there is one.
  static const Parameter parameters[sizeof...(A) + 1];
  template <unsigned... I>
  static void with(void (*function)(A...), void** p, Numbers<I...>) {
    (void)p;
    function(*(A*)p[I]...);
  }
  static void call(void (*function)(), void** p) {
    with((void (*)(A...))function, p, typename Below<sizeof...(A)>::Type());
  }
};
template <class... A>
const Parameter Taking<A...>::parameters[] = {{unsigned(sizeof(A)), Is<A>::pointer}..., {0, false}};

template <class... A>
Kernel kernel(const char* name, void (*function)(A...), bool has_barriers, unsigned most_threads) {
  auto place = [] { return &shim::place; };
  return {name, (void (*)())function, Taking<A...>::call, Taking<A...>::parameters,
          sizeof...(A), place, has_barriers, most_threads};
}
}  // namespace standin
