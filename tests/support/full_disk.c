/* Preloaded into a program, it shows it disks with a megabyte left. */
#include <string.h>
#include <sys/statvfs.h>

__attribute__((visibility("default"))) int statvfs(const char* path, struct statvfs* disk) {
    (void)path;
    memset(disk, 0, sizeof *disk);
    disk->f_frsize = 4096;
    disk->f_blocks = 1 << 20;
    disk->f_bavail = 256;
    return 0;
}
