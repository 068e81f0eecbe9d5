/* A libnvidia-ml.so.1 without a GPU, scripted by the file that FAKE_NVML_STATE names.
 *
 * The file holds one `key number` a line and is read again at every call:
 *   count 8                              how many GPUs there are
 *   gpu3.temperature 93                  what a GPU answers
 *   nvmlInitWithFlags 9                  the return code of a function
 *   gpu3.nvmlDeviceGetTemperature 15     the return code of a function for one GPU
 *   gpu3.error 15                        the return code of every function for one GPU
 *   gpu3.hang 60                         seconds that every function takes for one GPU
 *   gpu3.field215 4                      a field value of its first link; without it, no value
 *   xid.1 3079                           the first Xid event: GPU 3, code 079; then xid.2, ...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { int index; } device;
typedef struct { char old[16]; unsigned domain, bus, dev, id, sub; char bus_id[32]; } pci;
typedef struct { device *dev; unsigned long long type, data; unsigned gi, ci; } event;
typedef struct {
    unsigned field, scope; long long at, latency; int type, error; unsigned long long number;
} field_value;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process;

static device devices[16] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7},
                             {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};

static double stated(const char *key, double otherwise) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[128];
    double number;
    if (!file) return otherwise;
    while (fscanf(file, "%127s %lf", name, &number) == 2)
        if (!strcmp(name, key)) otherwise = number;
    fclose(file);
    return otherwise;
}

static double of(device *d, const char *key, double otherwise) {
    char name[128];
    snprintf(name, sizeof name, "gpu%d.%s", d->index, key);
    return stated(name, otherwise);
}

static int called(device *d, const char *function) {
    if (!d) return (int)stated(function, 0);
    double hang = of(d, "hang", 0);
    if (hang > 0) usleep((useconds_t)(hang * 1e6));
    int error = (int)of(d, "error", 0);
    return error ? error : (int)of(d, function, stated(function, 0));
}

#define CHECK(d) do { int r = called(d, __func__); if (r) return r; } while (0)
#define NUMBER(function, key, otherwise) \
    int function(device *d, unsigned *out) { CHECK(d); *out = (unsigned)of(d, key, otherwise); return 0; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; CHECK(NULL); return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "scripted"; }
int nvmlDeviceGetCount_v2(unsigned *out) { CHECK(NULL); *out = (unsigned)stated("count", 8); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    CHECK(&devices[index]);
    *out = &devices[index];
    return 0;
}
int nvmlDeviceGetPciInfo_v3(device *d, pci *out) {
    CHECK(d);
    memset(out, 0, sizeof *out);
    out->bus = 0x1a + (unsigned)d->index;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return 0;
}
int nvmlDeviceGetTemperature(device *d, unsigned sensor, unsigned *out) {
    (void)sensor; CHECK(d); *out = (unsigned)of(d, "temperature", 45); return 0;
}
int nvmlDeviceGetTemperatureThreshold(device *d, unsigned kind, unsigned *out) {
    (void)kind; CHECK(d); *out = (unsigned)of(d, "slowdown", 90); return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *out) {
    CHECK(d); *out = (unsigned long long)of(d, "throttle", 0); return 0;
}
int nvmlDeviceGetClockInfo(device *d, unsigned kind, unsigned *out) {
    (void)kind; CHECK(d); *out = (unsigned)of(d, "clock", 1900); return 0;
}
int nvmlDeviceGetMaxClockInfo(device *d, unsigned kind, unsigned *out) {
    (void)kind; CHECK(d); *out = (unsigned)of(d, "clock_max", 1980); return 0;
}
int nvmlDeviceGetTotalEccErrors(device *d, unsigned type, unsigned counter, unsigned long long *out) {
    (void)type; (void)counter; CHECK(d); *out = (unsigned long long)of(d, "ecc", 0); return 0;
}
int nvmlDeviceGetRemappedRows(device *d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    CHECK(d);
    *c = (unsigned)of(d, "remap_corrected", 0);
    *u = (unsigned)of(d, "remap_uncorrected", 0);
    *pending = (unsigned)of(d, "remap_pending", 0);
    *failed = (unsigned)of(d, "remap_failed", 0);
    return 0;
}
NUMBER(nvmlDeviceGetPcieReplayCounter, "replays", 0)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "width_max", 16)
int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *out) {
    CHECK(d);
    if (link >= (unsigned)of(d, "links", 18)) return 2;
    *out = link >= (unsigned)of(d, "links_down", 0);
    return 0;
}
int nvmlDeviceGetNvLinkErrorCounter(device *d, unsigned link, unsigned kind, unsigned long long *out) {
    (void)kind; CHECK(d); *out = link ? 0 : (unsigned long long)of(d, "link_errors", 0); return 0;
}
int nvmlDeviceGetFieldValues(device *d, int count, field_value *values) {
    CHECK(d);
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "field%u", values[i].field);
        double number = of(d, key, -1);
        values[i].type = 3;
        values[i].error = number < 0 ? 3 : 0;
        values[i].number = values[i].scope ? 0 : (unsigned long long)number;
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process *out) {
    CHECK(d);
    unsigned pid = (unsigned)of(d, "pid", 0), room = *count;
    *count = pid ? 1 : 0;
    if (!pid) return 0;
    if (!out || room < 1) return 7;
    memset(out, 0, sizeof *out);
    out->pid = pid;
    return 0;
}
int nvmlEventSetCreate(void **out) { CHECK(NULL); *out = calloc(1, sizeof(int)); return 0; }
int nvmlEventSetFree(void *set) { free(set); return 0; }
int nvmlDeviceRegisterEvents(device *d, unsigned long long types, void *set) {
    (void)types; (void)set; CHECK(d); return 0;
}
/* Whether the script is another one than at the last call: it is replaced as a whole. */
static int changed(struct stat *last) {
    struct stat now;
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path || stat(path, &now)) return 0;
    int same = now.st_ino == last->st_ino && now.st_mtim.tv_nsec == last->st_mtim.tv_nsec;
    *last = now;
    return !same;
}

int nvmlEventSetWait_v2(int *set, event *out, unsigned timeout_ms) {
    struct stat last = {0};
    for (unsigned waited = 0; waited <= timeout_ms; waited += 10) {
        if (!changed(&last)) {
            usleep(10 * 1000);
            continue;
        }
        char key[32];
        for (int i = 0; i < 16; i++)
            if (of(&devices[i], "error", 0) == 15) return 15;
        snprintf(key, sizeof key, "xid.%d", *set + 1);
        int told = (int)stated(key, -1);
        if (told >= 0) {
            memset(out, 0, sizeof *out);
            out->dev = &devices[told / 1000];
            out->type = 8;
            out->data = (unsigned long long)(told % 1000);
            ++*set;
            return 0;
        }
        usleep(10000);
    }
    return 10;
}
