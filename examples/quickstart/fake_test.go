package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fakeEnv makes this test binary play worker and enqueue. How it misbehaves stands in the file "mode" beside limits.yaml.
const fakeEnv = "QUICKSTART_FAKE"

func TestMain(m *testing.M) {
	if os.Getenv(fakeEnv) != "" {
		fake()
		return
	}
	os.Setenv(fakeEnv, "1")
	os.Setenv("REDIS_URL", "redis://somebody.else:6379")
	os.Exit(m.Run())
}

func fake() {
	if os.Getenv("REDIS_URL") != "" {
		fail("REDIS_URL is set: the demo would use a Redis that is not its own")
	}
	role, args := fakeWorker, os.Args[1:]
	if args[0] == "batch" {
		role, args = fakeEnqueue, args[1:]
	}
	f := flag.NewFlagSet("fake", flag.ExitOnError)
	redis := f.String("redis", "", "")
	limits := f.String("limits", "", "")
	queues := f.String("queues", "", "")
	allow := f.String("allow-host", "", "")
	listen := f.String("listen", "", "")
	f.Bool("page", false, "")
	_ = f.Parse(args) // ExitOnError
	dir := filepath.Dir(*limits)
	mode, err := os.ReadFile(filepath.Join(dir, "mode"))
	check(err)
	role(fakeArgs{string(mode), dir, *redis, *queues, *allow, *listen, f.Arg(0)})
}

type fakeArgs struct{ mode, dir, redis, queues, allow, listen, file string }

func fail(what any) {
	fmt.Fprintln(os.Stderr, what)
	os.Exit(1)
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

// fakeEnqueue leaves a mark that fakeWorker waits for.
func fakeEnqueue(a fakeArgs) {
	if a.mode == "enqueue fails" {
		fail("tasks.ndjson:3: not a task")
	}
	if a.redis != "redis://127.0.0.1:6390" || a.file != filepath.Join(a.dir, "tasks.ndjson") {
		fail(fmt.Sprint("fake enqueue was given ", a))
	}
	check(os.WriteFile(filepath.Join(a.dir, "enqueued"), nil, 0o600))
}

// fakeWorker calls every task once, in the file's order, without any limit.
func fakeWorker(a fakeArgs) {
	if a.mode == "refuses" {
		fail("127.0.0.1:6390: address already in use")
	}
	if a.redis != "embedded" || a.queues != "q1=1,q2=1" || a.allow == "" {
		fail(fmt.Sprint("fake worker was given ", a))
	}
	fmt.Fprintln(os.Stderr, "fake worker runs as", os.Getpid())
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if a.mode != "never ready" {
		serveMetrics(a.listen)
	}
	go func() {
		for _, err := os.Stat(filepath.Join(a.dir, "enqueued")); err != nil; _, err = os.Stat(filepath.Join(a.dir, "enqueued")) {
			<-time.After(time.Millisecond)
		}
		callAll(a)
	}()
	<-term
	if a.mode == "ends badly" {
		fail("a task was left behind")
	}
}

var fakePickUps [2]atomic.Int64 // of q1 and q2

func serveMetrics(addr string) {
	http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "# TYPE headway_pickups_total counter")
		for i := range fakePickUps {
			fmt.Fprintf(w, "headway_pickups_total{queue=\"q%d\"} %d\n", i+1, fakePickUps[i].Load())
		}
	})
	l, err := net.Listen("tcp", addr)
	check(err)
	fmt.Fprintf(os.Stderr, "msg=listening addr=%s\n", l.Addr())
	go func() { fail(http.Serve(l, nil)) }()
}

func callAll(a fakeArgs) {
	f, err := os.Open(filepath.Join(a.dir, "tasks.ndjson"))
	check(err)
	in := bufio.NewScanner(f)
	for n := 0; in.Scan(); n++ {
		if n == 3 && a.mode == "loses one" {
			continue
		}
		if n == 3 && a.mode == "dies" {
			fail("panic: out of luck")
		}
		var t task
		check(json.Unmarshal(in.Bytes(), &t))
		fakePickUps[strings.Index("12", t.Queue[1:])].Add(1)
		t.send()
		if n == 3 && a.mode == "sends one twice" {
			t.send()
		}
	}
}

// task is what the fakes need of a line.
type task struct {
	ID    string `json:"id"`
	Scope string `json:"scope"`
	Queue string `json:"queue"`
	HTTP  struct {
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
	} `json:"http"`
}

func (t task) send() {
	req, err := http.NewRequest(http.MethodGet, t.HTTP.URL, nil)
	check(err)
	for k, v := range t.HTTP.Headers {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	check(err)
	res.Body.Close()
}
