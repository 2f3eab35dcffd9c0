package demand

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrFull says that an output takes no more.
var ErrFull = errors.New("demand: the record has its largest size")

// ErrNoRecord says that a file has something that no Recorder has written.
var ErrNoRecord = errors.New("demand: the file is no record")

// Config configures NewRecorder. Out is required.
type Config struct {
	// Out takes the record, in blocks of whole lines, each a member of gzip. A Recorder writes one after the other. After ErrFull it writes
	// no more.
	Out io.Writer
	// Sample is the part of the tenants whose tasks are recorded, above 0 and at most 1. Defaults to 1.
	Sample float64
	// Logger receives a line when the record is full, and when it cannot be written. Defaults to slog.Default.
	Logger *slog.Logger
}

const (
	maxWaiting = 20_000          // lines that wait to be written
	blockLines = 1000            // lines of a block
	blockStays = 5 * time.Second // how long a block waits for more lines
	processes  = time.Minute     // between two lines of a process
	streamStay = 8 * 24 * time.Hour
)

// Recorder writes a record. It is safe for concurrent use.
type Recorder struct {
	cfg     Config
	least   uint64 // hashes of tenants below it are recorded
	waiting chan Task
	lost    atomic.Int64
	stopped atomic.Bool

	name   string
	writes bool // the last block was written
}

// NewRecorder returns a Recorder. It does no I/O. The error names the field that is wrong.
func NewRecorder(cfg Config) (*Recorder, error) {
	cfg.Sample, cfg.Logger = cmp.Or(cfg.Sample, 1), cmp.Or(cfg.Logger, slog.Default())
	switch {
	case cfg.Out == nil:
		return nil, errors.New("demand: Config.Out is nil; see OpenFile and ToRedis")
	case !(cfg.Sample > 0 && cfg.Sample <= 1):
		return nil, fmt.Errorf("demand: Config.Sample is %v; it is above 0 and at most 1", cfg.Sample)
	}
	host, _ := os.Hostname()
	r := &Recorder{cfg: cfg, least: math.MaxUint64, waiting: make(chan Task, maxWaiting), writes: true}
	r.name = fmt.Sprintf("%s:%d:%04x", cmp.Or(host, "unknown"), os.Getpid(), rand.N(1<<16)) //nolint:gosec // a name
	if cfg.Sample < 1 {
		r.least = uint64(cfg.Sample * math.MaxUint64)
	}
	return r, nil
}

// Wants reports whether tasks of a scope are recorded. It costs a hash.
func (r *Recorder) Wants(scope string) bool {
	return r != nil && !r.stopped.Load() && (r.cfg.Sample == 1 || hash(tenant(scope)) < r.least)
}

// Record records a task, if Wants does. It does not block: a line that finds 20,000 others waiting is lost, and counted.
func (r *Recorder) Record(t Task) {
	if !r.Wants(t.Scope) {
		return
	}
	select {
	case r.waiting <- t:
	default:
		r.lost.Add(1)
	}
}

// Run writes the record until ctx ends, and then what was recorded by then. about returns the Slots and the Limits of this process; it may
// be nil.
func (r *Recorder) Run(ctx context.Context, about func() Process) {
	if about == nil {
		about = func() Process { return Process{} }
	}
	flush, minute := time.Tick(blockStays), time.Tick(processes)
	b := newBlock()
	add := func(line any) {
		if b.add(line); b.lines >= blockLines {
			b = r.write(b)
		}
	}
	add(r.of(about()))
	for {
		select {
		case t := <-r.waiting:
			add(t)
		case <-minute:
			add(r.of(about()))
		case <-flush:
			b = r.write(b)
		case <-ctx.Done():
			for len(r.waiting) > 0 {
				add(<-r.waiting)
			}
			last := r.of(about())
			last.End = true
			b.add(last)
			r.write(b)
			return
		}
	}
}

// of completes what is said of this process.
func (r *Recorder) of(p Process) Process {
	p.V, p.Process, p.Lost = Version, r.name, r.lost.Load()
	p.At = cmp.Or(p.At, time.Now().UnixMicro())
	if r.cfg.Sample < 1 {
		p.Sample = r.cfg.Sample
	}
	return p
}

// write writes a block, and returns the next one. What cannot be written is lost.
func (r *Recorder) write(b *block) *block {
	if b.lines == 0 || r.stopped.Load() {
		return newBlock()
	}
	_, err := r.cfg.Out.Write(b.bytes())
	switch {
	case errors.Is(err, ErrFull):
		r.stopped.Store(true)
		last := newBlock()
		last.add(r.of(Process{Full: true, End: true}))
		_, _ = r.cfg.Out.Write(last.bytes()) // a file has room for it
		r.cfg.Logger.Error("the record of demand has its largest size: no further task is recorded", "process", r.name)
	case err != nil:
		r.lost.Add(int64(b.lines))
		if r.writes {
			r.cfg.Logger.Warn("cannot write the record of demand; tasks of the meantime will be missing", "error", err)
		}
	}
	r.writes = err == nil
	return newBlock()
}

// block is some lines, in gzip.
type block struct {
	text  bytes.Buffer
	zip   *gzip.Writer
	enc   *json.Encoder
	lines int
}

func newBlock() *block {
	b := &block{}
	b.zip, _ = gzip.NewWriterLevel(&b.text, gzip.BestSpeed)
	b.enc = json.NewEncoder(b.zip)
	return b
}

func (b *block) add(line any) {
	_ = b.enc.Encode(line) // of strings and numbers, to memory
	b.lines++
}

func (b *block) bytes() []byte {
	_ = b.zip.Close()
	return b.text.Bytes()
}

// File is a record in a file.
type File struct {
	f          *os.File
	size, most int64
}

const (
	room      = 1 << 10 // left for the line that says that a file is full
	mostBlock = 4 << 20 // bytes of a block
)

// blockHeader is how each block begins.
var blockHeader = newBlock().bytes()[:10]

// OpenFile opens the file of a record, or makes one that its owner alone may read. Blocks are added to what it has; a last block that a
// crash has cut off is removed. It takes most bytes in all. The errors are those of os.OpenFile, ErrNoRecord, and ErrFull.
func OpenFile(path string, most int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	switch {
	case err != nil: // a pipe has no size
		size, err = 0, nil
	case size+2*room > most:
		err = ErrFull
	case size > 0:
		size, err = wholeBlocks(f, size)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &File{f, size, most}, nil
}

// wholeBlocks cuts off a last block that is not whole, since nothing behind it could be read, and returns the size of the record then.
func wholeBlocks(f *os.File, size int64) (int64, error) {
	tail := make([]byte, min(size, mostBlock))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil {
		return 0, err
	}
	at := bytes.LastIndex(tail, blockHeader)
	if at < 0 && bytes.HasPrefix(blockHeader, tail) {
		return 0, f.Truncate(0)
	} else if at < 0 {
		return 0, ErrNoRecord
	}
	rest := bytes.NewReader(tail[at:])
	z, err := gzip.NewReader(rest)
	if err == nil {
		z.Multistream(false)            // what stands behind the block is the beginning of a header
		_, err = io.Copy(io.Discard, z) //nolint:gosec // a block of ours
	}
	cut := int64(rest.Len())
	if err != nil {
		cut = int64(len(tail) - at)
	}
	if cut == 0 {
		return size, nil
	}
	return size - cut, f.Truncate(size - cut)
}

// Write adds a block, or returns ErrFull.
func (f *File) Write(block []byte) (int, error) {
	if left, size := f.most-f.size, int64(len(block)); size > left || size > room && size > left-room {
		return 0, ErrFull
	}
	n, err := f.f.Write(block)
	if err != nil { // a disk that is full takes a part
		_ = f.f.Truncate(f.size)
		return 0, err
	}
	f.size += int64(n)
	return n, nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// stream is a record in Redis. Redis bounds the entries of a stream, and not their bytes: so many are kept as have most bytes if they are
// as large as this process's have been of late.
type stream struct {
	rdb  redis.UniversalClient
	key  string
	most int64
	mean int64 // bytes of an entry
}

const (
	entryBytes = 100 // of an entry beside its block
	lately     = 100 // entries
)

// ToRedis returns an output that keeps the newest part of the record of all processes in Redis: at most some `most` bytes, and for 8 days.
// prefix is throttle.Config.Prefix, "hw" if it is empty. Each block is two commands, and waits for Redis for a second at most.
func ToRedis(rdb redis.UniversalClient, prefix string, most int64) io.Writer {
	return &stream{rdb: rdb, key: streamKey(prefix), most: most}
}

func streamKey(prefix string) string { return cmp.Or(prefix, "hw") + ":{!record}" }

func (s *stream) Write(block []byte) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	size := int64(len(block) + entryBytes)
	s.mean = cmp.Or(s.mean, size)
	s.mean += (size - s.mean) / lately
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XAdd(ctx, &redis.XAddArgs{Stream: s.key, MaxLen: max(1, s.most/s.mean), Approx: true, Values: []any{"z", block}})
		p.Expire(ctx, s.key, streamStay)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(block), nil
}

// FromRedis returns a reader of the record in Redis, for Read. It reads 100 blocks at a time; there is none if the first Read returns
// io.EOF.
func FromRedis(ctx context.Context, rdb redis.UniversalClient, prefix string) io.Reader {
	return &streamReader{ctx: ctx, rdb: rdb, key: streamKey(prefix), next: "-"}
}

type streamReader struct {
	ctx  context.Context //nolint:containedctx // of one reading
	rdb  redis.UniversalClient
	key  string
	next string
	has  bytes.Buffer
}

func (s *streamReader) Read(p []byte) (int, error) {
	if s.has.Len() == 0 {
		const some = 100
		entries, err := s.rdb.XRangeN(s.ctx, s.key, s.next, "+", some).Result()
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			text, _ := e.Values["z"].(string)
			s.has.WriteString(text)
			s.next = "(" + e.ID
		}
	}
	return s.has.Read(p)
}
