// A mock of an inference engine that costs almost nothing: one thread, epoll, OpenAI's chat API, several ports = several replicas.
//
//   cc -O2 -o mock_engine mock_engine.c && ./mock_engine 9001 9002
//
// Control, on any of the ports: GET /_set?chunks=200&spread=0&gap_us=20000, GET /_stats, GET /_abort (drops every stream).
// spread: a stream has so many chunks more or less, evenly, so that streams that began together do not end together.
// A chunk is written when it is due, whatever the reader does (open loop), in a write() of its own, and carries the time it was due as
// "@<16 digits of CLOCK_MONOTONIC in microseconds>@". A client on the same machine so reads the delay of every single chunk, also behind
// proxies that write the JSON anew.
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

enum { MAX_FDS = 65536, EVENTS = 512, STAMP_DIGITS = 16, SNIFF_BYTES = 8192 };

typedef struct {
  int fd, listening;
  uint32_t generation;          // grows when the connection ends: timers of a former one are void
  int busy, streaming, headless; // a reply is in progress; it is a stream; its head is still to come
  int chunks_left, gap_us, blocked, queued;
  uint64_t due_us;
  char *in; int in_length, in_size;
  char *out; int out_length, out_done; // what the socket did not take yet
} Connection;

typedef struct { uint64_t due_us; Connection *connection; uint32_t generation; } Timer;

static int poller, set_chunks = 200, set_spread, set_gap_us;
static uint32_t turn_of_length;
static unsigned long requests, chunks, accepted, open_connections;
static Connection *connections[MAX_FDS];
static Timer *timers; static int timer_count, timer_size;
static Connection **ready; static int ready_count, ready_size; // streams without a gap that may write on
static char reply[4096], chunk[1024], final[2048];
static int reply_length, chunk_length, stamp_at, final_length;
static const char stream_head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void *grown(void *array, int *size, size_t item) {
  *size = *size ? *size * 2 : 1024;
  return realloc(array, *size * item);
}

// ---- timers: a binary heap by due time

static void add_timer(uint64_t due_us, Connection *c) {
  if (timer_count == timer_size) timers = grown(timers, &timer_size, sizeof *timers);
  int i = timer_count++;
  for (; i && timers[(i - 1) / 2].due_us > due_us; i = (i - 1) / 2) timers[i] = timers[(i - 1) / 2];
  timers[i] = (Timer){due_us, c, c->generation};
}

static Timer next_timer(void) {
  Timer first = timers[0], last = timers[--timer_count];
  int i = 0;
  for (;;) {
    int child = 2 * i + 1;
    if (child >= timer_count) break;
    if (child + 1 < timer_count && timers[child + 1].due_us < timers[child].due_us) child++;
    if (timers[child].due_us >= last.due_us) break;
    timers[i] = timers[child];
    i = child;
  }
  timers[i] = last;
  return first;
}

// ---- what is sent

static int framed(char *to, const char *event) { return sprintf(to, "%zx\r\n%s\r\n", strlen(event), event); }

static void build_replies(void) {
  const char *id = "\"id\":\"chatcmpl-mock0123456789abcdef\"";
  const char *made = "\"created\":1700000000,\"model\":\"mock-model\"";
  char words[641], body[2048], event[1024];
  for (int i = 0; i < 640; i++) words[i] = i % 6 == 5 ? ' ' : "lorem"[i % 6];
  words[640] = 0;
  int n = sprintf(body, "{%s,\"object\":\"chat.completion\",%s,\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"%s\",\"tool_calls\":null},"
    "\"logprobs\":null,\"finish_reason\":\"stop\",\"matched_stop\":151645}],\"usage\":{\"prompt_tokens\":256,\"total_tokens\":384,\"completion_tokens\":128,\"prompt_tokens_details\":null}}", id, made, words);
  reply_length = sprintf(reply, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", n, body);
  sprintf(event, "data: {%s,\"object\":\"chat.completion.chunk\",%s,\"choices\":[{\"index\":0,\"delta\":{\"role\":null,\"content\":\"@0000000000000000@\"},"
    "\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}],\"usage\":null}\n\n", id, made);
  chunk_length = framed(chunk, event);
  stamp_at = strchr(chunk, '@') - chunk + 1;
  sprintf(event, "data: {%s,\"object\":\"chat.completion.chunk\",%s,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n", id, made);
  final_length = framed(final, event);
  sprintf(event, "data: {%s,\"object\":\"chat.completion.chunk\",%s,\"choices\":[],\"usage\":{\"prompt_tokens\":256,\"total_tokens\":456,\"completion_tokens\":200}}\n\n", id, made);
  final_length += framed(final + final_length, event);
  final_length += framed(final + final_length, "data: [DONE]\n\n");
  final_length += sprintf(final + final_length, "0\r\n\r\n");
}

// ---- connections

static void watch(Connection *c, int writing) {
  struct epoll_event e = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void drop(Connection *c) {
  epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, 0);
  close(c->fd);
  c->generation++;
  c->busy = c->streaming = c->chunks_left = c->in_length = c->out_length = c->out_done = c->queued = c->blocked = 0;
  open_connections--;
}

static int put(Connection *c, const char *data, int length) { // -1: the connection is gone
  if (!c->out_length) {
    ssize_t written = write(c->fd, data, length);
    if (written == length) return 0;
    if (written < 0 && errno != EAGAIN) { drop(c); return -1; }
    if (written > 0) { data += written; length -= written; }
  }
  c->out = realloc(c->out, c->out_length + length);
  memcpy(c->out + c->out_length, data, length);
  c->out_length += length;
  if (!c->blocked) { c->blocked = 1; watch(c, 1); }
  return 0;
}

static void put_answer(Connection *c, const char *body, const char *type) {
  char text[4096];
  put(c, text, sprintf(text, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s", type, strlen(body), body));
}

static void queue(Connection *c) {
  if (c->queued) return;
  if (ready_count == ready_size) ready = grown(ready, &ready_size, sizeof *ready);
  ready[ready_count++] = c;
  c->queued = 1;
}

static void read_requests(Connection *c);

static void write_chunk(Connection *c, uint64_t due_us) {
  char text[1400];
  int length = 0;
  if (c->headless) { memcpy(text, stream_head, length = sizeof stream_head - 1); c->headless = 0; }
  memcpy(text + length, chunk, chunk_length);
  for (int i = STAMP_DIGITS - 1; i >= 0; i--, due_us /= 10) text[length + stamp_at + i] = '0' + due_us % 10;
  chunks++;
  c->chunks_left--;
  if (put(c, text, length + chunk_length) < 0) return;
  if (c->chunks_left <= 0) {
    c->busy = c->streaming = 0;
    if (put(c, final, final_length) == 0) read_requests(c);
  } else if (c->gap_us) {
    add_timer(c->due_us += c->gap_us, c);
  } else if (!c->blocked) {
    queue(c);
  }
}

static void generate(Connection *c, int streaming) {
  requests++;
  if (!streaming) { put(c, reply, reply_length); return; }
  c->busy = c->streaming = c->headless = 1;
  // Multiples of the golden ratio: as even as chance at its best, and the same in every run.
  c->chunks_left = set_chunks - set_spread + (int)((uint64_t)(turn_of_length++ * 2654435769u) * (2 * set_spread + 1) >> 32);
  c->gap_us = set_gap_us;
  c->due_us = now_us();
  write_chunk(c, c->due_us);
}

static void set_number(const char *head, int length, const char *name, int *value) {
  const char *found = memmem(head, length, name, strlen(name));
  if (found) *value = atoi(found + strlen(name));
}

static void control(Connection *c, const char *head, int length) {
  if (!strncmp(head, "GET /_set", 9)) {
    set_number(head, length, "chunks=", &set_chunks);
    set_spread = 0;
    set_number(head, length, "spread=", &set_spread);
    set_number(head, length, "gap_us=", &set_gap_us);
  }
  if (!strncmp(head, "GET /_abort", 11))
    for (int i = 0; i < MAX_FDS; i++) if (connections[i] && connections[i]->busy && connections[i] != c) drop(connections[i]);
  if (!strncmp(head, "GET /_stats", 11)) {
    char text[200];
    sprintf(text, "{\"requests\":%lu,\"chunks\":%lu,\"accepted\":%lu,\"open\":%lu}", requests, chunks, accepted, open_connections);
    put_answer(c, text, "application/json");
  } else if (!strncmp(head, "GET /v1/models", 14)) {
    put_answer(c, "{\"object\":\"list\",\"data\":[{\"id\":\"mock-model\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"sglang\",\"root\":\"mock-model\",\"max_model_len\":32768}]}", "application/json");
  } else if (!strncmp(head, "GET /metrics", 12)) {
    put_answer(c, "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{model_name=\"mock-model\"} 1.0\n# TYPE sglang:num_queue_reqs gauge\n"
      "sglang:num_queue_reqs{model_name=\"mock-model\"} 0.0\n# TYPE sglang:token_usage gauge\nsglang:token_usage{model_name=\"mock-model\"} 0.1\n", "text/plain; version=0.0.4");
  } else if (!strncmp(head, "GET /health", 11)) {
    put_answer(c, "OK", "text/plain");
  } else {
    put_answer(c, "{\"model_path\":\"mock-model\",\"served_model_name\":\"mock-model\",\"tokenizer_path\":\"mock-model\",\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"0.5\",\"status\":\"ok\"}", "application/json");
  }
}

static int says_stream(const char *body, long length) { // looked for at both ends: a long prompt lies between
  long first = length < SNIFF_BYTES ? length : SNIFF_BYTES;
  const char *tail = body + length - first;
  return memmem(body, first, "\"stream\":true", 13) || memmem(body, first, "\"stream\": true", 14) ||
         memmem(tail, first, "\"stream\":true", 13) || memmem(tail, first, "\"stream\": true", 14);
}

static void read_requests(Connection *c) {
  while (!c->busy && c->in_length > 0) {
    char *end = memmem(c->in, c->in_length, "\r\n\r\n", 4);
    if (!end) return;
    char *head = c->in;
    int head_length = end + 4 - head;
    long body_length = 0;
    *end = 0;
    char *length = strcasestr(head, "\r\ncontent-length:");
    int chunked = !length && strcasestr(head, "\r\ntransfer-encoding: chunked");
    int expects = strcasestr(head, "\r\nexpect: 100-continue") && c->in_length == head_length;
    if (length) body_length = atol(length + 17);
    *end = '\r';
    if (expects) { put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25); return; }
    if (chunked) {
      char *last = memmem(end + 4, c->in_length - head_length, "0\r\n\r\n", 5);
      if (!last) return;
      body_length = last + 5 - (end + 4);
    }
    if (c->in_length < head_length + body_length) return;
    uint32_t generation = c->generation;
    int abort = !strncmp(head, "POST /abort_request", 19); // what a router says of a stream whose connection it has closed already
    int post = !abort && !strncmp(head, "POST ", 5), streaming = says_stream(end + 4, body_length);
    if (!post) control(c, head, head_length);
    if (c->generation != generation) return;
    memmove(c->in, c->in + head_length + body_length, c->in_length - head_length - body_length);
    c->in_length -= head_length + body_length;
    if (post) generate(c, streaming);
  }
}

// ---- the loop

static void accept_all(Connection *listener) {
  int fd, on = 1;
  while ((fd = accept4(listener->fd, 0, 0, SOCK_NONBLOCK)) >= 0) {
    if (fd >= MAX_FDS) { close(fd); continue; }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!connections[fd]) {
      connections[fd] = calloc(1, sizeof(Connection));
      connections[fd]->in = malloc(connections[fd]->in_size = SNIFF_BYTES);
    }
    connections[fd]->fd = fd;
    accepted++;
    open_connections++;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = connections[fd]};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
  }
}

static void write_on(Connection *c) {
  ssize_t written = write(c->fd, c->out + c->out_done, c->out_length - c->out_done);
  if (written < 0 && errno != EAGAIN) { drop(c); return; }
  if (written > 0) c->out_done += written;
  if (c->out_done < c->out_length) return;
  c->out_length = c->out_done = c->blocked = 0;
  watch(c, 0);
  if (c->busy && c->streaming && !c->gap_us && !c->headless) queue(c);
}

static void read_on(Connection *c) {
  for (;;) {
    if (c->in_length > c->in_size / 2) c->in = realloc(c->in, c->in_size *= 2);
    ssize_t length = read(c->fd, c->in + c->in_length, c->in_size - c->in_length);
    if (length == 0 || (length < 0 && errno != EAGAIN)) { drop(c); return; }
    if (length < 0) return;
    c->in_length += length;
    if (c->in_length < c->in_size) { read_requests(c); return; }
  }
}

static void listen_on(int port) {
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(fd, (void *)&address, sizeof address) || listen(fd, 4096)) { fprintf(stderr, "port %d: %s\n", port, strerror(errno)); exit(1); }
  Connection *listener = calloc(1, sizeof *listener);
  listener->fd = fd;
  listener->listening = 1;
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = listener};
  epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
}

static void write_ready(void) { // streams that are queued meanwhile wait for the next turn
  static Connection **turn;
  static int turn_size;
  int count = ready_count, size = ready_size;
  Connection **queued = ready;
  ready = turn; ready_size = turn_size; ready_count = 0;
  turn = queued; turn_size = size;
  for (int k = 0; k < count; k++) {
    Connection *c = turn[k];
    if (!c->queued) continue;
    c->queued = 0;
    if (c->busy && c->streaming && !c->blocked) write_chunk(c, now_us());
  }
}

int main(int count, char **arguments) {
  if (count < 2) { fprintf(stderr, "usage: mock_engine PORT...\n"); return 2; }
  signal(SIGPIPE, SIG_IGN);
  build_replies();
  poller = epoll_create1(0);
  for (int i = 1; i < count; i++) listen_on(atoi(arguments[i]));
  struct epoll_event events[EVENTS];
  for (;;) {
    struct timespec wait = {1, 0};
    if (ready_count) {
      wait.tv_sec = 0;
    } else if (timer_count) {
      int64_t left = (int64_t)(timers[0].due_us - now_us());
      if (left < 1000000) wait = (struct timespec){0, left < 0 ? 0 : left * 1000};
    }
    int found = epoll_pwait2(poller, events, EVENTS, &wait, 0);
    for (int i = 0; i < found; i++) {
      Connection *c = events[i].data.ptr;
      if (c->listening) { accept_all(c); continue; }
      uint32_t generation = c->generation;
      if ((events[i].events & EPOLLOUT) && c->out_length) write_on(c);
      if (c->generation == generation && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) read_on(c);
    }
    uint64_t now = now_us();
    for (int k = 0; k < 4096 && timer_count && timers[0].due_us <= now; k++) {
      Timer t = next_timer();
      if (t.generation == t.connection->generation && t.connection->busy) write_chunk(t.connection, t.due_us);
    }
    write_ready();
  }
}
