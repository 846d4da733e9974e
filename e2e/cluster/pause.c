/* First process of a sandbox: waits, buries orphans, ends when told. It holds a pod's namespaces, and those of the whole node. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void finish(int number) { (void)number; _exit(0); }
static void bury(int number) { (void)number; while (waitpid(-1, NULL, WNOHANG) > 0) {} }

int main(void) {
  signal(SIGINT, finish);
  signal(SIGTERM, finish);
  signal(SIGCHLD, bury);
  for (;;) pause();
}
