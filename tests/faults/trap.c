/* Fails, or kills the process at, the n-th system call that reads or changes a file below a folder.

   A seccomp filter raises SIGSYS at every such call, whichever library makes it: the standard library of Rust and its
   crates make some without going through libc, so a library that LD_PRELOAD puts in front would not see them. The
   handler counts, and makes the call itself unless it is the one to fail. The calls of the first thread, those of its
   other threads (they write checkpoints) and those that read are counted apart: each sequence is the same in every
   run of one recipe, however the threads interleave.

   The filter outlives an exec, the handler does not. So programs that the process starts are placed at the top of the
   address space, where addresses that are not random end, and calls from there pass: they are not watched.

   Python calls `watch` in the parent, `arm` in the forked child that is to suffer, and reads `events` afterwards. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum sequence { MAIN, BACKGROUND, READS, SEQUENCES };
enum mode { NONE, KILL, TORN, EIO_ONCE, FULL, SHORT };
enum kind { WRITE = 1, SYNC, NAME, READ }; /* NAME: what changes folders, and sizes */

struct event {
    int sequence, kind, grows, failed;
    char call[16], path[232];
};

enum { MAX_EVENTS = 20000, LENGTH = 1024 };
struct shared {
    int length, fired;
    int counts[SEQUENCES];
    struct event events[MAX_EVENTS];
};

static struct shared *shared;
static char below[LENGTH];
static int target_sequence, target_number, target_mode, disk_full;

long raw(long number, long a, long b, long c, long d, long e, long f);
extern char raw_made[];
#if defined(__x86_64__)
__asm__(".globl raw\n.globl raw_made\nraw:\n"
        "mov %rdi,%rax\nmov %rsi,%rdi\nmov %rdx,%rsi\nmov %rcx,%rdx\nmov %r8,%r10\nmov %r9,%r8\nmov 8(%rsp),%r9\n"
        "syscall\nraw_made:\nret\n");
#define ARGUMENT(n) context->uc_mcontext.gregs[(int[]){REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9}[n]]
#define RESULT context->uc_mcontext.gregs[REG_RAX]
enum { TOP = 0x7fff }; /* the upper half of an address there */
#elif defined(__aarch64__)
__asm__(".globl raw\n.globl raw_made\nraw:\n"
        "mov x8,x0\nmov x0,x1\nmov x1,x2\nmov x2,x3\nmov x3,x4\nmov x4,x5\nmov x5,x6\nsvc #0\nraw_made:\nret\n");
#define ARGUMENT(n) context->uc_mcontext.regs[n]
#define RESULT context->uc_mcontext.regs[0]
enum { TOP = 0xffff };
#endif

/* `at`: which argument is the path, with a folder's descriptor before it when `folder` is set; -1: the first argument
   is the file's own descriptor. `flags`: which argument holds the flags of an opening. */
struct call {
    long number;
    const char *name;
    int kind, at, folder, flags, grows;
};

static const struct call CALLS[] = {
    {SYS_write, "write", WRITE, -1, 0, 0, 1},
    {SYS_pwrite64, "pwrite", WRITE, -1, 0, 0, 1},
    {SYS_writev, "writev", WRITE, -1, 0, 0, 1},
    {SYS_pwritev, "pwritev", WRITE, -1, 0, 0, 1},
    {SYS_pwritev2, "pwritev2", WRITE, -1, 0, 0, 1},
    {SYS_copy_file_range, "copy", NAME, -1, 0, 0, 1},
    {SYS_sendfile, "sendfile", NAME, -1, 0, 0, 1},
    {SYS_fsync, "fsync", SYNC, -1, 0, 0, 0},
    {SYS_fdatasync, "fdatasync", SYNC, -1, 0, 0, 0},
    {SYS_sync_file_range, "syncrange", SYNC, -1, 0, 0, 0},
    {SYS_ftruncate, "ftruncate", NAME, -1, 0, 0, 0},
    {SYS_truncate, "truncate", NAME, 0, 0, 0, 0},
    {SYS_fallocate, "fallocate", NAME, -1, 0, 0, 1},
    {SYS_renameat2, "rename", NAME, 3, 1, 0, 0},
#ifdef SYS_renameat
    {SYS_renameat, "rename", NAME, 3, 1, 0, 0},
#endif
    {SYS_unlinkat, "unlink", NAME, 1, 1, 0, 0},
    {SYS_mkdirat, "mkdir", NAME, 1, 1, 0, 1},
    {SYS_linkat, "link", NAME, 3, 1, 0, 1},
    {SYS_symlinkat, "symlink", NAME, 2, 1, 0, 1},
    {SYS_openat, "open", NAME, 1, 1, 2, 1},
    {SYS_read, "read", READ, -1, 0, 0, 0},
    {SYS_pread64, "pread", READ, -1, 0, 0, 0},
    {SYS_readv, "readv", READ, -1, 0, 0, 0},
    {SYS_preadv, "preadv", READ, -1, 0, 0, 0},
#ifdef __x86_64__
    {SYS_rename, "rename", NAME, 1, 0, 0, 0},
    {SYS_unlink, "unlink", NAME, 0, 0, 0, 0},
    {SYS_rmdir, "rmdir", NAME, 0, 0, 0, 0},
    {SYS_mkdir, "mkdir", NAME, 0, 0, 0, 1},
    {SYS_link, "link", NAME, 1, 0, 0, 1},
    {SYS_symlink, "symlink", NAME, 1, 0, 0, 1},
    {SYS_open, "open", NAME, 0, 0, 1, 1},
    {SYS_creat, "open", NAME, 0, 0, 0, 1},
#endif
};
enum { NUM_CALLS = sizeof CALLS / sizeof *CALLS };

/* The path that a descriptor stands for. */
static void path_of(long descriptor, char *path) {
    char link[32] = "/proc/self/fd/", digits[12];
    int length = 0, at = strlen(link);
    do digits[length++] = '0' + descriptor % 10;
    while (descriptor /= 10);
    while (length) link[at++] = digits[--length];
    link[at] = 0;
    long size = raw(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, LENGTH - 1, 0, 0);
    path[size > 0 ? size : 0] = 0;
}

static void full_path(long folder, const char *name, char *path) {
    path[0] = 0;
    if (name[0] != '/') {
        if ((int)folder == AT_FDCWD) raw(SYS_getcwd, (long)path, LENGTH, 0, 0, 0, 0);
        else path_of((int)folder, path);
        strncat(path, "/", LENGTH - strlen(path) - 1);
    }
    strncat(path, name, LENGTH - strlen(path) - 1);
}

/* Half of what was to be written, at the place where it was to be. */
static long half(const struct call *call, const long *a) {
    if (call->number == SYS_write || call->number == SYS_pwrite64)
        return raw(call->number, a[0], a[1], (a[2] + 1) / 2, a[3], 0, 0);
    struct iovec first = *(const struct iovec *)a[1];
    first.iov_len = (first.iov_len + 1) / 2;
    return raw(call->number, a[0], (long)&first, 1, a[3], a[4], a[5]);
}

static void die(void) { raw(SYS_kill, raw(SYS_getpid, 0, 0, 0, 0, 0, 0), SIGKILL, 0, 0, 0, 0); }

/* Note the call; make it, or let it fail. */
static long judge(const struct call *call, int kind, const char *path, const long *a) {
    int first = raw(SYS_gettid, 0, 0, 0, 0, 0, 0) == raw(SYS_getpid, 0, 0, 0, 0, 0, 0);
    int sequence = kind == READ ? READS : first ? MAIN : BACKGROUND;
    int number = __sync_fetch_and_add(&shared->counts[sequence], 1);
    int place = __sync_fetch_and_add(&shared->length, 1);
    struct event unnoted, *event = place < MAX_EVENTS ? &shared->events[place] : &unnoted;
    event->sequence = sequence, event->kind = kind, event->failed = 0, event->grows = call->grows && kind != READ;
    if (call->flags && event->grows) event->grows = raw(SYS_faccessat, AT_FDCWD, (long)path, F_OK, 0, 0, 0) != 0;
    strncpy(event->call, call->name, sizeof event->call - 1);
    strncpy(event->path, path + strlen(below), sizeof event->path - 1);
    long result;
    int mode = sequence == target_sequence && number == target_number ? target_mode : NONE;
    if (mode) shared->fired = 1;
    if (mode == KILL) event->failed = 1, die(); /* it is not made */
    if (mode == TORN) half(call, a), die();
    if (mode == SHORT) return half(call, a);
    if (mode == EIO_ONCE) result = -EIO;
    else if (disk_full && event->grows) result = -ENOSPC;
    else if (mode == FULL) result = (disk_full = 1, kind == WRITE) ? half(call, a) : -ENOSPC;
    else result = raw(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
    event->failed = result < 0;
    return result;
}

static void trapped(int signal, siginfo_t *information, void *machine) {
    (void)signal;
    ucontext_t *context = machine;
    int before = errno;
    const struct call *call = CALLS;
    while (call->number != information->si_syscall) call++; /* the filter traps these only */
    long a[6];
    for (int n = 0; n < 6; n++) a[n] = ARGUMENT(n);
    char path[LENGTH];
    if (call->at >= 0) full_path(call->folder ? a[call->at - 1] : AT_FDCWD, (const char *)a[call->at], path);
    else path_of(call->number == SYS_copy_file_range ? a[2] : a[0], path);
    int kind = call->flags && !(a[call->flags] & (O_CREAT | O_TRUNC)) ? READ : call->kind;
    size_t length = strlen(below);
    if (!strncmp(path, below, length) && (!path[length] || path[length] == '/')) RESULT = judge(call, kind, path, a);
    else RESULT = raw(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
    errno = before;
}

/* Note the calls of processes that are forked from now on, below a folder. */
void watch(const char *folder) {
    strncpy(below, folder, LENGTH - 1);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* From now on this process and its threads are watched; the n-th call of a sequence fails. NONE: none does. */
int arm(int sequence, int number, int mode) {
    target_sequence = sequence, target_number = number, target_mode = mode;
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    sigaction(SIGSYS, &action, NULL);
    if ((uint64_t)(uintptr_t)raw >> 32 == TOP) return EAGAIN; /* by chance: one start in 256 */
    personality(ADDR_NO_RANDOMIZE);
    static struct sock_filter filter[NUM_CALLS + 11];
    struct sock_filter *next = filter;
    uintptr_t made = (uintptr_t)raw_made;
    const size_t caller = offsetof(struct seccomp_data, instruction_pointer);
    *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, caller);
    *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)made, 0, 3);
    *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, caller + 4);
    *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)((uint64_t)made >> 32), 0, 1);
    *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, caller + 4);
    *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TOP, 0, 1);
    *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int n = 0; n < NUM_CALLS; n++)
        *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[n].number, NUM_CALLS - n, 0);
    *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    *next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    struct sock_fprog program = {next - filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? errno : 0;
}

int fired(void) { return shared->fired; }
int length(void) { return shared->length < MAX_EVENTS ? shared->length : MAX_EVENTS; }
const struct event *events(void) { return shared->events; }
