/* Preloaded into daemons of tests on Linux: the clocks that a person, NTP or a machine's sleep can step. `clock_attach`
   names a file of two doubles, seconds by which CLOCK_REALTIME and CLOCK_BOOTTIME are ahead; until then nothing changes.
   CLOCK_MONOTONIC stays as it is. Waits until a moment of CLOCK_REALTIME take the step into account, as the kernel does
   for those that begin after it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const double nothing[2];
static const volatile double *ahead = nothing;

int clock_attach(const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return -1;
  }
  void *found = mmap(0, sizeof nothing, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (found == MAP_FAILED) {
    return -1;
  }
  ahead = found;
  return 0;
}

static double ahead_of(clockid_t id) {
  switch (id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
      return ahead[0];
    case CLOCK_BOOTTIME:
      return ahead[1];
    default:
      return 0;
  }
}

static void add(struct timespec *when, double seconds) {
  double whole = floor(seconds);
  when->tv_sec += (time_t)whole;
  when->tv_nsec += (long)((seconds - whole) * 1e9);
  if (when->tv_nsec >= 1000000000) {
    when->tv_sec += 1;
    when->tv_nsec -= 1000000000;
  }
}

#define OWN(name) __typeof__(&name) own = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t id, struct timespec *now) {
  static __typeof__(&clock_gettime) own;
  if (!own) {
    own = (__typeof__(&clock_gettime))dlsym(RTLD_NEXT, "clock_gettime");
  }
  int failed = own(id, now);
  if (!failed) {
    double seconds = ahead_of(id);
    if (seconds) {
      add(now, seconds);
    }
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now) {
    *now = found.tv_sec;
  }
  return found.tv_sec;
}

/* A moment of the stepped clock as the kernel has it. Those of a clock that counts from the machine's start are small. */
static const struct timespec *real(clockid_t id, const struct timespec *when, struct timespec *kept) {
  double seconds = ahead_of(id);
  if (!when || !seconds || (id == CLOCK_REALTIME && when->tv_sec < 1000000000)) {
    return when;
  }
  *kept = *when;
  add(kept, -seconds);
  if (kept->tv_sec < 0) {
    kept->tv_sec = kept->tv_nsec = 0;
  }
  return kept;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *when, struct timespec *left) {
  OWN(clock_nanosleep);
  struct timespec kept;
  return own(id, flags, flags & TIMER_ABSTIME ? real(id, when, &kept) : when, left);
}

int sem_timedwait(sem_t *restrict one, const struct timespec *restrict when) {
  OWN(sem_timedwait);
  struct timespec kept;
  return own(one, real(CLOCK_REALTIME, when, &kept));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict one, const struct timespec *restrict when) {
  OWN(pthread_mutex_timedlock);
  struct timespec kept;
  return own(one, real(CLOCK_REALTIME, when, &kept));
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict one, pthread_mutex_t *restrict held, const struct timespec *restrict when) {
  static __typeof__(&pthread_cond_timedwait) own;
  if (!own) { /* x86-64 has an older one, of another layout, which may be found without its version */
    own = (__typeof__(&pthread_cond_timedwait))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!own) {
      own = (__typeof__(&pthread_cond_timedwait))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    }
  }
  struct timespec kept;
  return own(one, held, real(CLOCK_REALTIME, when, &kept));
}

int pthread_cond_clockwait(
    pthread_cond_t *restrict one, pthread_mutex_t *restrict held, clockid_t id, const struct timespec *restrict when) {
  OWN(pthread_cond_clockwait);
  struct timespec kept;
  return own(one, held, id, real(id, when, &kept));
}

long syscall(long number, ...) {
  static __typeof__(&syscall) own;
  if (!own) {
    own = (__typeof__(&syscall))dlsym(RTLD_NEXT, "syscall");
  }
  long given[6];
  struct timespec kept;
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; i++) {
    given[i] = va_arg(rest, long);
  }
  va_end(rest);
  if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME)) {
    given[3] = (long)real(CLOCK_REALTIME, (const struct timespec *)given[3], &kept);
  }
  return own(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
