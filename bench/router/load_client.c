// A load client for OpenAI-style chat endpoints: one thread, epoll, keep-alive connections in a closed loop.
//
//   load_client stream|reply HOST:PORT CONNECTIONS WARM_SECONDS SECONDS BODY_BYTES
//
// stream: every request asks for a stream; starts are spread over the warm-up. reply: every request asks for one reply.
// Prints one line of JSON about the seconds after the warm-up. Delay of a chunk = time received minus the time it was due, which the mock
// engine writes into it as "@microseconds@" (same machine, same clock). Key, model and path: BENCH_KEY, BENCH_MODEL, BENCH_PATH.
// BENCH_INTERVAL_SECONDS: a line about each interval instead of one about the whole.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_BYTES = 8192, EVENTS = 512, STAMP_DIGITS = 16, PROMPTS = 64, LARGE_BODY = 100000 };
enum Part { HEAD, LENGTH_BODY, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, LAST_LINE };

typedef struct {
  int fd, busy, wrong;                      // wrong: the reply that is being read is a refusal, which counts as nothing else
  enum Part part;
  char head[HEAD_BYTES]; int head_length;   // behind the head of a refusal that is told: its body
  int telling;                              // the status of a refusal that is told, or 0
  long left; int size_digits;               // of the body or of the chunk that is being read; left < 0: until the end of the connection
  int stamp_digits, stamps; uint64_t stamp; // progress within "@...@", stamps seen in this reply
  uint64_t started, last_chunk;
  const char *unsent; int unsent_length;
} Connection;

typedef struct { float *values; long count, size; } Sample;

static int poller, streaming, running = 1, prompts, turn;
static struct sockaddr_in address;
static char *requests[PROMPTS]; static int request_lengths[PROMPTS];
static Sample first_chunk_us, delay_us, gap_us, latency_us;
static long finished, broken, refused, chunks, connects;
static uint64_t window_start, window_end;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void add(Sample *s, double value) {
  if (s->count == s->size) s->values = realloc(s->values, (s->size = s->size ? s->size * 2 : 65536) * sizeof(float));
  s->values[s->count++] = value;
}

static int ascending(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

static void print_quantile(const char *name, Sample *s, double q) { // nothing seen: null
  if (!s->count) { printf(",\"%s\":null", name); return; }
  long i = q * s->count;
  printf(",\"%s\":%.1f", name, s->values[i < s->count ? i : s->count - 1]);
}

// ---- requests

static const char *setting(const char *name, const char *otherwise) {
  const char *found = getenv(name);
  return found ? found : otherwise;
}

static void build_requests(int body_bytes, const char *host) {
  const char *key = setting("BENCH_KEY", ""), *model = setting("BENCH_MODEL", "mock-model"), *path = setting("BENCH_PATH", "/v1/chat/completions");
  prompts = body_bytes > LARGE_BODY ? 4 : PROMPTS;
  for (int k = 0; k < prompts; k++) {
    char *body = malloc(body_bytes + 1024), *p = body;
    p += sprintf(p, "{\"model\":\"%s\",\"messages\":[{\"role\":\"system\",\"content\":\"You are helpful.\"},{\"role\":\"user\",\"content\":\"req %02d ", model, k);
    while (p - body < body_bytes - 60) p += sprintf(p, "lorem ipsum dolor ");
    p += sprintf(p, "\"}],\"temperature\":0.7,\"max_tokens\":128,\"stream\":%s}", streaming ? "true" : "false");
    requests[k] = malloc(p - body + 1024);
    request_lengths[k] = sprintf(requests[k], "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %ld\r\n\r\n%s",
      path, host, key, (long)(p - body), body);
    free(body);
  }
}

static void watch(Connection *c, int operation, int writing) {
  struct epoll_event e = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, operation, c->fd, &e);
}

static void send_on(Connection *c) {
  while (c->unsent_length > 0) {
    ssize_t sent = send(c->fd, c->unsent, c->unsent_length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) { watch(c, EPOLL_CTL_MOD, 1); return; }
    c->unsent += sent;
    c->unsent_length -= sent;
  }
  watch(c, EPOLL_CTL_MOD, 0);
}

static void start(Connection *c) {
  if (c->fd < 0) {
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (void *)&address, sizeof address)) { close(c->fd); c->fd = -1; broken++; return; }
    connects++;
    watch(c, EPOLL_CTL_ADD, 0);
  }
  c->part = HEAD;
  c->head_length = c->stamp_digits = c->stamps = 0;
  c->last_chunk = 0;
  c->wrong = 0;
  c->busy = 1;
  c->started = now_ns();
  c->unsent = requests[turn];
  c->unsent_length = request_lengths[turn];
  turn = (turn + 1) % prompts;
  ssize_t sent = send(c->fd, c->unsent, c->unsent_length, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == c->unsent_length) { c->unsent_length = 0; return; }
  if (sent > 0) { c->unsent += sent; c->unsent_length -= sent; }
  send_on(c);
}

// ---- replies

static int inside(uint64_t t) { return t >= window_start && t < window_end; }

static void chunk_arrived(Connection *c, uint64_t t) {
  if (c->wrong) return;
  if (++c->stamps == 1 && inside(c->started)) add(&first_chunk_us, (t - c->started) / 1e3);
  if (inside(t)) {
    double delay = t / 1e3 - c->stamp;
    chunks++;
    add(&delay_us, delay < 0 ? 0 : delay);
    if (c->last_chunk) add(&gap_us, (t - c->last_chunk) / 1e3);
  }
  c->last_chunk = t;
}

static void find_stamps(Connection *c, const char *p, long length, uint64_t t) { // stamp_digits: 0 outside, 1 + digits seen inside
  for (const char *end = p + length; p < end;) {
    if (!c->stamp_digits) {
      p = memchr(p, '@', end - p);
      if (!p) return;
      p++;
      c->stamp_digits = 1;
      c->stamp = 0;
    } else if (*p >= '0' && *p <= '9') {
      c->stamp = c->stamp * 10 + (*p++ - '0');
      c->stamp_digits++;
    } else {
      if (*p == '@' && c->stamp_digits == STAMP_DIGITS + 1) { chunk_arrived(c, t); p++; }
      c->stamp_digits = 0;
    }
  }
}

static void hear(Connection *c, const char *p, long length) { // a piece of a refusal's body
  long room = 300 - c->head_length, taken = length < room ? length : room;
  if (!c->telling) return;
  memcpy(c->head + c->head_length, p, taken);
  c->head_length += taken;
}

static void tell(Connection *c) {
  if (c->telling) fprintf(stderr, "HTTP %d %.*s\n", c->telling, c->head_length, c->head);
  c->telling = c->head_length = 0;
}

static void finish(Connection *c, uint64_t t) {
  tell(c);
  c->busy = 0;
  if (inside(t) && !c->wrong) {
    finished++;
    if (inside(c->started)) add(&latency_us, (t - c->started) / 1e3);
  }
  if (running) start(c);
}

static long read_head(Connection *c, const char *p, long length) { // bytes used, or 0 if the head is not complete yet
  long room = HEAD_BYTES - 1 - c->head_length, taken = length < room ? length : room;
  memcpy(c->head + c->head_length, p, taken);
  c->head[c->head_length + taken] = 0;
  char *end = strstr(c->head, "\r\n\r\n");
  if (!end) { c->head_length += taken; return 0; }
  long used = end + 4 - c->head - c->head_length;
  *end = 0;
  int status = atoi(c->head + 9);
  c->head_length = 0;
  if (status == 100) return used;
  c->wrong = status != 200;
  c->telling = c->wrong && ++refused < 3 ? status : 0;
  char *found = strcasestr(c->head, "\r\ncontent-length:");
  c->left = found ? atol(found + 17) : -1;
  c->part = LENGTH_BODY;
  if (strcasestr(c->head, "\r\ntransfer-encoding: chunked")) { c->part = CHUNK_SIZE; c->left = 0; c->size_digits = 0; }
  return used;
}

static void size_digit(Connection *c, char digit) {
  int value = digit >= '0' && digit <= '9' ? digit - '0' : (digit | 32) >= 'a' && (digit | 32) <= 'f' ? (digit | 32) - 'a' + 10 : -1;
  if (digit == '\n' && c->size_digits) c->part = c->left ? CHUNK_DATA : LAST_LINE;
  else if (value >= 0) { c->left = c->left * 16 + value; c->size_digits++; }
}

static void received(Connection *c, const char *p, long length, uint64_t t) {
  while (length > 0) {
    long used = 1;
    switch (c->part) {
      case HEAD:
        used = read_head(c, p, length);
        if (!used) return;
        if (c->part == LENGTH_BODY && c->left == 0) { finish(c, t); return; }
        break;
      case LENGTH_BODY:
        used = c->left >= 0 && c->left < length ? c->left : length;
        if (streaming) find_stamps(c, p, used, t);
        hear(c, p, used);
        if (c->left >= 0 && (c->left -= used) == 0) { finish(c, t); return; }
        break;
      case CHUNK_SIZE:
        size_digit(c, *p);
        break;
      case CHUNK_DATA:
        used = c->left < length ? c->left : length;
        find_stamps(c, p, used, t);
        hear(c, p, used);
        if ((c->left -= used) == 0) c->part = CHUNK_END;
        break;
      case CHUNK_END:
        if (*p == '\n') { c->part = CHUNK_SIZE; c->left = 0; c->size_digits = 0; }
        break;
      case LAST_LINE:
        if (*p == '\n') { finish(c, t); return; }
        break;
    }
    p += used;
    length -= used;
  }
}

static void ended(Connection *c, uint64_t t) {
  int whole = c->busy && c->part == LENGTH_BODY && c->left < 0, was_busy = c->busy;
  close(c->fd);
  c->fd = -1;
  c->busy = 0;
  if (whole) { finish(c, t); return; }
  tell(c);
  if (was_busy) broken++;
  if (was_busy && running) start(c);
}

static void report(double seconds) { // and begin anew
  Sample *samples[] = {&first_chunk_us, &delay_us, &gap_us, &latency_us};
  for (int i = 0; i < 4; i++) if (samples[i]->count) qsort(samples[i]->values, samples[i]->count, sizeof(float), ascending);
  printf("{\"finished\":%ld,\"finished_per_second\":%.2f,\"chunks\":%ld,\"chunks_per_second\":%.1f,\"broken\":%ld,\"refused\":%ld,\"connects\":%ld",
    finished, finished / seconds, chunks, chunks / seconds, broken, refused, connects);
  print_quantile("latency_p50_us", &latency_us, .5);
  print_quantile("latency_p99_us", &latency_us, .99);
  print_quantile("ttft_p50_us", &first_chunk_us, .5);
  print_quantile("ttft_p99_us", &first_chunk_us, .99);
  print_quantile("delay_p50_us", &delay_us, .5);
  print_quantile("delay_p99_us", &delay_us, .99);
  print_quantile("delay_max_us", &delay_us, 1);
  print_quantile("gap_p99_us", &gap_us, .99);
  printf("}\n");
  fflush(stdout);
  for (int i = 0; i < 4; i++) samples[i]->count = 0;
  finished = chunks = broken = refused = connects = 0;
}

int main(int count, char **arguments) {
  if (count != 7) { fprintf(stderr, "usage: load_client stream|reply HOST:PORT CONNECTIONS WARM_SECONDS SECONDS BODY_BYTES\n"); return 2; }
  signal(SIGPIPE, SIG_IGN);
  streaming = !strcmp(arguments[1], "stream");
  char *host = strdup(arguments[2]), *port = strchr(host, ':');
  *port = 0;
  address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(port + 1))};
  inet_pton(AF_INET, host, &address.sin_addr);
  int wanted = atoi(arguments[3]), begun = 0;
  double warm = atof(arguments[4]), seconds = atof(arguments[5]), interval = atof(setting("BENCH_INTERVAL_SECONDS", "0"));
  build_requests(atoi(arguments[6]), arguments[2]);
  poller = epoll_create1(0);
  Connection *connections = calloc(wanted, sizeof *connections);
  for (int i = 0; i < wanted; i++) connections[i].fd = -1;
  uint64_t zero = now_ns(), apart = warm * 0.8e9 / wanted;
  window_start = zero + warm * 1e9;
  window_end = window_start + seconds * 1e9;
  uint64_t next_report = interval ? window_start + interval * 1e9 : window_end;
  static char buffer[1 << 18];
  struct epoll_event events[EVENTS];
  for (;;) {
    uint64_t t = now_ns();
    if (t >= window_end) break;
    if (t >= next_report) { report(interval); next_report += interval * 1e9; }
    while (begun < wanted && t >= zero + apart * begun) start(&connections[begun++]);
    int64_t wait = begun < wanted ? (int64_t)(zero + apart * begun - t) : 50000000;
    struct timespec limit = {0, wait < 0 ? 0 : wait};
    int found = epoll_pwait2(poller, events, EVENTS, &limit, 0);
    for (int i = 0; i < found; i++) {
      Connection *c = events[i].data.ptr;
      if (events[i].events & EPOLLOUT) send_on(c);
      if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
      ssize_t length = recv(c->fd, buffer, sizeof buffer, MSG_DONTWAIT);
      if (length < 0 && errno == EAGAIN) continue;
      if (length <= 0) ended(c, now_ns());
      else received(c, buffer, length, now_ns());
    }
  }
  running = 0;
  report(interval ? interval : seconds);
  return 0;
}
