/* Notes the files that native code and started programs open, look at, list and write.

   Preloaded into a worker and into all that it starts, it stands before these functions of the C
   library and appends a line to the events of the observation; native.py has the format. In a
   Python with the audit hook, calls of the interpreter itself are left to the hook. A process that
   a step starts without these variables gets them again. `git` is not observed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define ROOM (1 << 20)           /* bytes of the longest line */
#define SEEN (1 << 16)           /* how many events a process remembers */
#define COPIED (64 << 20)        /* bytes of the largest file that is copied before a change */
#define LOST (1 << 20)           /* the mark of a lost record: MOST_MARKS of observation.py */

struct watch { const char *folder, *start, *started, *rules, *end; };
static struct watch *now;        /* NULL while nothing is observed */
static int hooked;               /* whether this is a Python with the audit hook */
static uintptr_t low, high;      /* where the code of the interpreter lies, if there is one */
static char library[PATH_MAX];
static uint64_t seen[SEEN];
extern char **environ;

#define CALLER ((uintptr_t)__builtin_return_address(0))

static int sys_open(const char *path, int flags, int mode) {
  return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}

/* The path of an open file, which has room for PATH_MAX bytes; its length, 0 if it has none. */
static size_t path_of(int file, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
  if (length < 0 || *path != '/') length = 0;
  path[length] = 0;
  return length;
}

/* --- lines ------------------------------------------------------------------------------------ */

static void append(const char *format, const char *folder, const char *line, size_t size) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, format, folder);
  int file = sys_open(path, O_WRONLY | O_APPEND, 0), is_kept = strstr(format, "kept") != NULL;
  if (file >= 0 && write(file, line, size) == (ssize_t)size) { close(file); return; }
  if (file >= 0) close(file);
  if (is_kept && file < 0) return;  /* nothing is kept, or the step has emptied its scratch */
  snprintf(path, sizeof path, is_kept ? "%s/kept/rules" : "%s/marks", folder);
  if (is_kept) { (void)!truncate(path, 0); return; }
  if ((file = sys_open(path, O_WRONLY, 0)) < 0) return;
  (void)!pwrite(file, "\1", 1, LOST);
  close(file);
}

static char *text(char *to, char *end, const char *from) {
  for (*to++ = '"'; *from && to + 8 < end; from++) {
    unsigned char c = *from;
    if (c < 32 || c >= 127) to += sprintf(to, c < 128 ? "\\u00%02x" : "\\udc%02x", c);
    else {
      if (c == '"' || c == '\\') *to++ = '\\';
      *to++ = c;
    }
  }
  *to++ = '"';
  return to;
}

static char *state(char *to, const struct statx *s) {  /* as state_of in states.py */
  if (!s) return stpcpy(to, "null");
  if (!S_ISREG(s->stx_mode)) return stpcpy(to, "[]");
  return to + sprintf(to, "[%llu,%llu,%llu,%lld,%lld]",
    (unsigned long long)makedev(s->stx_dev_major, s->stx_dev_minor), (unsigned long long)s->stx_ino,
    (unsigned long long)s->stx_size, s->stx_mtime.tv_sec * 1000000000LL + s->stx_mtime.tv_nsec,
    s->stx_ctime.tv_sec * 1000000000LL + s->stx_ctime.tv_nsec);
}

static char *names(char *to, char *end, const char *folder) {
  static DIR *(*list)(const char *);
  if (!list) list = dlsym(RTLD_NEXT, "opendir");
  char *begin = to;
  DIR *open = list(folder);
  struct dirent *entry;
  if (!open) return stpcpy(to, "null");
  for (*to++ = '['; (entry = readdir(open)) && to + 6 * NAME_MAX < end;) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (to > begin + 1) *to++ = ',';
    to = text(to, end, entry->d_name);
  }
  closedir(open);
  if (entry) return stpcpy(begin, "null");  /* there are too many */
  *to++ = ']';
  return to;
}

static char *copy(char *to, struct watch *w, const char *path, const struct statx *s) {
  static int number;
  char made[PATH_MAX], name[64], block[4096];
  int from = -1, file = -1;
  ssize_t size = -1;
  int next = __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED);
  snprintf(name, sizeof name, "before-%d-%d", getpid(), next);
  snprintf(made, sizeof made, "%s/%s", w->folder, name);
  if (s->stx_size <= COPIED && (from = sys_open(path, O_RDONLY, 0)) >= 0)
    file = sys_open(made, O_WRONLY | O_CREAT, 0600);
  while (file >= 0 && (size = read(from, block, sizeof block)) > 0)
    if (write(file, block, size) != size) { size = -1; break; }
  if (from >= 0) close(from);
  if (file >= 0) close(file);
  return size == 0 ? text(to, to + 128, name) : stpcpy(to, "null");
}

/* --- events ----------------------------------------------------------------------------------- */

static int counts(struct watch *w, const char *path) {  /* as Rules.counts, which decides */
  size_t longest = 0, length, size = strlen(path);
  int is_counted = 1;
  if (strstr(path, "/../")) return 1;
  for (const char *rule = w->rules; rule < w->end; rule += length + 1) {
    length = strlen(rule);  /* a sign, and a folder with a slash at its end */
    size_t compared = size == length - 2 ? size : length - 1;
    if (length - 1 > longest && !strncmp(path, rule + 1, compared))
      longest = length - 1, is_counted = *rule == '+';
  }
  return is_counted;
}

static int is_new(char kind, const char *path) {
  uint64_t hash = 14695981039346656037u ^ (unsigned char)kind;
  for (const char *p = path; *p; p++) hash = (hash ^ (unsigned char)*p) * 1099511628211u;
  for (int i = 0; i < 8; i++) {
    uint64_t *place = &seen[(hash + i) % SEEN];
    if (*place == hash) return 0;
    if (!*place || i == 7) { *place = hash; return 1; }
  }
  return 1;
}

static void write_event(struct watch *w, char kind, int is_relative, const char *path) {
  struct statx found, *s = &found;
  if (syscall(SYS_statx, AT_FDCWD, path, 0, STATX_BASIC_STATS, s)) s = NULL;
  if (s && !S_ISREG(s->stx_mode) && !S_ISDIR(s->stx_mode)) return;
  if (!s && strstr(path, ":/")) return;  /* a URL, which may hold a key of a service */
  char *line = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (line == MAP_FAILED) return;
  char *to = line, *end = line + ROOM - 64, target[PATH_MAX];
  to += sprintf(to, "[\"native\",\"%c\",%d,", kind, is_relative);
  to = stpcpy(text(to, end, path), ",");
  to = stpcpy(state(to, s), ",");
  ssize_t length = -1;
  if (kind == 's') length = syscall(SYS_readlinkat, AT_FDCWD, path, target, sizeof target - 1);
  target[length > 0 ? length : 0] = 0;
  if (kind == 'd') to = names(to, end, path);
  else if (length > 0) to = text(to, end, target);
  else if (strchr("wac", kind) && s && S_ISREG(s->stx_mode)) to = copy(to, w, path, s);
  else to = stpcpy(to, "null");
  to = stpcpy(to, "]\n");
  append("%s/events", w->folder, line, to - line);
  append("%s/kept/events", w->folder, line, to - line);
  munmap(line, ROOM);
}

/* Note a call before it happens, if its file may count. The kinds are in native.py. */
static void note(uintptr_t caller, char kind, int dir, const char *name) {
  struct watch *w = __atomic_load_n(&now, __ATOMIC_ACQUIRE);
  if (!w || !name || !*name) return;
  int is_interpreter = low <= caller && caller < high, error = errno, is_relative = 0;
  if (is_interpreter && (hooked || kind == 'd')) return;  /* importing lists many folders */
  char whole[2 * PATH_MAX + 2];
  const char *path = name;
  if (*name != '/') {
    size_t length = 0;
    if (dir != AT_FDCWD) length = path_of(dir, whole);
    else if (syscall(SYS_getcwd, whole, PATH_MAX) > 0) length = strlen(whole);
    if (!length || *whole != '/') { errno = error; return; }
    is_relative = dir == AT_FDCWD && !strcmp(whole, w->start);
    snprintf(whole + length, sizeof whole - length, "/%s", name);
    path = whole;
  }
  if (counts(w, path) && is_new(kind, path)) write_event(w, kind, is_relative, path);
  errno = error;
}

static int is_read(int flags) { return !(flags & (O_ACCMODE | O_CREAT | O_TRUNC | O_DIRECTORY)); }

static void note_open(uintptr_t caller, int dir, const char *name, int flags) {
  if ((flags & O_TMPFILE) == O_TMPFILE || flags & O_DIRECTORY) return;
  char kind = (flags & O_ACCMODE) == O_RDONLY ? 'r' : (flags & O_ACCMODE) == O_RDWR ? 'c' : 'a';
  note(caller, flags & O_CREAT && flags & O_EXCL ? 'x' : flags & O_TRUNC ? 'w' : kind, dir, name);
}

/* Note what an open file is, which has another name behind a symbolic link; return the file. */
static int note_descriptor(uintptr_t caller, char kind, int file) {
  int error = errno;
  char path[PATH_MAX];
  if (now && path_of(file, path)) note(caller, kind, AT_FDCWD, path);
  errno = error;
  return file;
}

static int note_library(struct dl_phdr_info *info, size_t size, void *found) {
  (void)size, (void)found;
  if (info->dlpi_name && *info->dlpi_name == '/') note(0, 'r', AT_FDCWD, info->dlpi_name);
  return 0;
}

static int note_interpreter(struct dl_phdr_info *info, size_t size, void *found) {
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, place = (uintptr_t)found;
    uintptr_t end = begin + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type != PT_LOAD || place < begin || end <= place) continue;
    low = begin, high = end;
    return 1;
  }
  return 0;
}

/* --- what Python calls ------------------------------------------------------------------------ */

/* Observe for a folder, or for none; hook: whether the audit hook works in this process. */
void temper_observe(const char *folder, int hook) {
  struct watch *w = NULL;
  struct stat size;
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/native", folder);
  int file = *folder ? sys_open(path, O_RDONLY, 0) : -1;
  if (file >= 0 && !syscall(SYS_fstat, file, &size))
    w = malloc(sizeof *w + size.st_size + strlen(folder) + 2);
  if (w) {
    char *text = (char *)(w + 1);
    char *end = text + (read(file, text, size.st_size) == size.st_size ? size.st_size : 0);
    *end = 0;
    w->folder = strcpy(end + 1, folder);
    w->start = text;
    w->started = w->start + strlen(w->start) + (w->start < end);
    w->rules = w->started + strlen(w->started) + (w->started < end);
    w->end = end;
  }
  if (file >= 0) close(file);
  if (now) memset(seen, 0, sizeof seen);
  hooked = hook;
  __atomic_store_n(&now, w, __ATOMIC_RELEASE);  /* a thread may still use the one before */
}

__attribute__((constructor)) static void begin(void) {
  Dl_info self;
  const char *folder = getenv("TEMPER_OBSERVED");
  void *python = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  if (dladdr((void *)begin, &self)) snprintf(library, sizeof library, "%s", self.dli_fname);
  if (python) dl_iterate_phdr(note_interpreter, python);
  if (!folder || !strcmp(program_invocation_short_name, "git")) return;
  temper_observe(folder, 0);
  char program[PATH_MAX];
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", program, sizeof program - 1);
  if (length > 0) { program[length] = 0; note(0, 'r', AT_FDCWD, program); }
  dl_iterate_phdr(note_library, NULL);
}

/* --- programs that are started ---------------------------------------------------------------- */

/* The environment with the variables of the observation, in `room`. It stays as it is if it says
   that nothing is observed, and for an isolated Python, which may run what nobody trusts. */
static char **joined(char *const argv[], char *const env[], char **room) {
  struct watch *w = now;
  const char *name[] = {"LD_PRELOAD=", "PYTHONPATH=", "TEMPER_OBSERVED="};
  const char *value[] = {library, w ? w->started : "", w ? w->folder : ""};
  size_t count = 0;
  if (argv && *argv && strstr(*argv, "python"))
    for (char *const *word = argv; *word; word++) if (!strcmp(*word, "-I")) return (char **)env;
  for (; w && env && env[count]; count++) {
    room[count] = env[count];
    if (!strcmp(env[count], "TEMPER_OBSERVED=")) return (char **)env;
  }
  if (!w || !env) return (char **)env;
  char *to = (char *)(room + count + 4);
  for (int i = 0; i < 3; i++) {
    size_t at = 0, length = strlen(name[i]);
    while (at < count && strncmp(room[at], name[i], length)) at++;
    const char *old = at < count && i < 2 ? room[at] + length : "";
    if (at < count && strstr(room[at], value[i])) continue;
    if (at == count) count++;
    room[at] = to;
    const char *format = i ? "%s%s%s%s" : "%1$s%4$s%3$s%2$s", *between = *old ? ":" : "";
    to += sprintf(to, format, name[i], value[i], between, old) + 1;
  }
  room[count] = NULL;
  return room;
}

static size_t room_for(char *const env[]) {
  size_t bytes = 8 * sizeof(char *) + 4 * PATH_MAX;
  for (; env && *env; env++) {
    bytes += sizeof(char *);
    int is_longer = !strncmp(*env, "LD_PRELOAD=", 11) || !strncmp(*env, "PYTHONPATH=", 11);
    if (is_longer) bytes += strlen(*env);
  }
  return bytes;
}

#define STANDS_FOR(name, result, ...) \
  result ours_##name(__VA_ARGS__) __asm__(#name); \
  result ours_##name(__VA_ARGS__) { \
    static __typeof__(&ours_##name) real; \
    if (!real) real = dlsym(RTLD_NEXT, #name);
#define _(...) __VA_ARGS__
#define PROGRAM const char *path, char *const argv[]
#define EXEC(name, environment, parameters, ...) STANDS_FOR(name, int, parameters) \
    (void)real; \
    if (strchr(path, '/')) note(0, 'r', AT_FDCWD, path); \
    char **env = joined(argv, environment, alloca(room_for(environment))); \
    return __VA_ARGS__; }
#define SPAWN(name) STANDS_FOR(name, int, pid_t *pid, const char *path, const void *files, \
                               const void *how, char *const argv[], char *const given[]) \
    if (strchr(path, '/')) note(0, 'r', AT_FDCWD, path); \
    char **env = joined(argv, given, alloca(room_for(given))); \
    return real(pid, path, files, how, argv, env); }

EXEC(execve, given, _(PROGRAM, char *const given[]), real(path, argv, env))
EXEC(execvpe, given, _(PROGRAM, char *const given[]), real(path, argv, env))
EXEC(execv, environ, _(PROGRAM), execve(path, argv, env))
EXEC(execvp, environ, _(PROGRAM), execvpe(path, argv, env))
SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* --- files ------------------------------------------------------------------------------------ */

#define OPEN(name, dir, before, given) \
  STANDS_FOR(name, int, before const char *path, int flags, ...) \
    va_list rest; \
    va_start(rest, flags); \
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0; \
    va_end(rest); \
    note_open(CALLER, dir, path, flags); \
    int file = real(given path, flags, mode); \
    return file >= 0 && is_read(flags) ? note_descriptor(CALLER, 'r', file) : file; }
#define OPEN_HERE(name) OPEN(name, AT_FDCWD, , )
#define OPEN_AT(name) OPEN(name, dir, _(int dir,), _(dir,))
OPEN_HERE(open) OPEN_HERE(open64) OPEN_HERE(__open_2) OPEN_HERE(__open64_2)
OPEN_AT(openat) OPEN_AT(openat64) OPEN_AT(__openat_2) OPEN_AT(__openat64_2)

#define FOPEN(name) STANDS_FOR(name, FILE *, const char *path, const char *mode) \
    char kind = *mode == 'w' || *mode == 'a' ? *mode : strchr(mode, '+') ? 'c' : 'r'; \
    note(CALLER, kind, AT_FDCWD, path); \
    FILE *file = real(path, mode); \
    if (file && kind == 'r') note_descriptor(CALLER, 'r', fileno(file)); \
    return file; }
FOPEN(fopen) FOPEN(fopen64)

STANDS_FOR(opendir, DIR *, const char *path)
    note(CALLER, 'd', AT_FDCWD, path);
    DIR *list = real(path);
    if (list) note_descriptor(CALLER, 'd', dirfd(list));
    return list; }
STANDS_FOR(fdopendir, DIR *, int file) return real(note_descriptor(CALLER, 'd', file)); }

#define TEMPORARY(name, parameters, ...) STANDS_FOR(name, int, parameters) \
    int file = real(__VA_ARGS__); \
    if (file >= 0) note(CALLER, 'o', AT_FDCWD, path); \
    return file; }
TEMPORARY(mkstemp, _(char *path), path)
TEMPORARY(mkstemp64, _(char *path), path)
TEMPORARY(mkostemp, _(char *path, int flags), path, flags)
TEMPORARY(mkostemp64, _(char *path, int flags), path, flags)

/* Stands for a function, given its parameters and then its arguments. */
#define NOTED_AT(dir, kind, result, name, parameters, ...) STANDS_FOR(name, result, parameters) \
    note(CALLER, kind, dir, path); \
    return real(__VA_ARGS__); }
#define NOTED(kind, result, name, parameters, ...) STANDS_FOR(name, result, parameters) \
    note(CALLER, kind, AT_FDCWD, path); \
    return real(__VA_ARGS__); }
#define LOOK (flags & AT_SYMLINK_NOFOLLOW ? 'p' : 'l')
#define STAT(name, kind) NOTED(kind, int, name, _(const char *path, void *s), path, s)
#define XSTAT(name, kind) NOTED(kind, int, name, _(int v, const char *path, void *s), v, path, s)
#define AT int dir, const char *path
#define STAT_AT(name) \
  NOTED_AT(dir, LOOK, int, name, _(AT, void *s, int flags), dir, path, s, flags)
#define XSTAT_AT(name) \
  NOTED_AT(dir, LOOK, int, name, _(int v, AT, void *s, int flags), v, dir, path, s, flags)
#define ACCESS(name) NOTED('l', int, name, _(const char *path, int mode), path, mode)
#define SCANDIR(name) \
  NOTED('d', int, name, _(const char *path, void *a, void *b, void *c), path, a, b, c)
STAT(stat, 'l') STAT(stat64, 'l') STAT(lstat, 'p') STAT(lstat64, 'p')
XSTAT(__xstat, 'l') XSTAT(__xstat64, 'l') XSTAT(__lxstat, 'p') XSTAT(__lxstat64, 'p')
STAT_AT(fstatat) STAT_AT(fstatat64) XSTAT_AT(__fxstatat) XSTAT_AT(__fxstatat64)
ACCESS(access) ACCESS(eaccess) ACCESS(euidaccess) SCANDIR(scandir) SCANDIR(scandir64)
NOTED_AT(dir, LOOK, int, statx, _(AT, int flags, unsigned mask, void *s), dir, path, flags, mask, s)
NOTED_AT(dir, 'l', int, faccessat, _(AT, int mode, int flags), dir, path, mode, flags)
NOTED('s', ssize_t, readlink, _(const char *path, char *to, size_t size), path, to, size)
NOTED_AT(dir, 's', ssize_t, readlinkat, _(AT, char *to, size_t size), dir, path, to, size)
NOTED(*mode == 'r' ? 'r' : 'w', FILE *, freopen,
      _(const char *path, const char *mode, FILE *file), path, mode, file)
NOTED('w', int, creat, _(const char *path, mode_t mode), path, mode)
NOTED('c', int, truncate, _(const char *path, off_t size), path, size)
NOTED('m', int, mkdir, _(const char *path, mode_t mode), path, mode)
NOTED_AT(dir, 'm', int, mkdirat, _(AT, mode_t mode), dir, path, mode)
NOTED('w', int, symlink, _(const char *target, const char *path), target, path)
NOTED_AT(dir, 'w', int, symlinkat, _(const char *target, AT), target, dir, path)

#define MOVE(name, from_dir, to_dir, parameters, ...) STANDS_FOR(name, int, parameters) \
    note(CALLER, 'c', from_dir, from); \
    note(CALLER, 'w', to_dir, to); \
    return real(__VA_ARGS__); }
#define TWO int a, const char *from, int b, const char *to
MOVE(rename, AT_FDCWD, AT_FDCWD, _(const char *from, const char *to), from, to)
MOVE(link, AT_FDCWD, AT_FDCWD, _(const char *from, const char *to), from, to)
MOVE(renameat, a, b, _(TWO), a, from, b, to)
MOVE(renameat2, a, b, _(TWO, unsigned flags), a, from, b, to, flags)
MOVE(linkat, a, b, _(TWO, int flags), a, from, b, to, flags)
