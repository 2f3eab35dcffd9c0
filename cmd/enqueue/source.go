package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
)

// source is the file of a batch. It counts what is read, and stops when ctx ends
// even where reading would block for ever, as on a terminal.
type source struct {
	size  int64 // 0 when unknown
	read  atomic.Int64
	file  *os.File // nil for standard input
	ctx   context.Context
	end   context.CancelFunc
	parts chan part
	rest  part
}

// part is what one reading of the file gave.
type part struct {
	data []byte
	err  error
}

// openSource opens the file at path, or standard input for "-".
func openSource(c *cobra.Command, path string) (*source, error) {
	s := &source{parts: make(chan part)}
	input := c.InOrStdin()
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, explainFile("the tasks", err)
		}
		s.file, input = file, file
	}
	if file, ok := input.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			s.size = info.Size()
		}
	}
	s.ctx, s.end = context.WithCancel(c.Context())
	go s.fetch(input)
	return s, nil
}

// fetch reads ahead of Read, into two buffers in turn. It may be left behind in
// a reading that never ends; the program ends then.
func (s *source) fetch(input io.Reader) {
	buffers := [2][]byte{make([]byte, 64<<10), make([]byte, 64<<10)}
	for i := 0; ; i++ {
		n, err := input.Read(buffers[i%2])
		select {
		case s.parts <- part{buffers[i%2][:n], err}:
		case <-s.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Read is called by one goroutine at a time.
func (s *source) Read(p []byte) (int, error) {
	for len(s.rest.data) == 0 {
		if s.rest.err != nil {
			return 0, s.rest.err
		}
		select {
		case s.rest = <-s.parts:
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
	n := copy(p, s.rest.data)
	s.rest.data = s.rest.data[n:]
	s.read.Add(int64(n))
	return n, nil
}

func (s *source) close() {
	s.end()
	if s.file != nil {
		_ = s.file.Close()
	}
}

// explainFile says why a file could not be read.
func explainFile(what string, err error) error {
	try := ""
	pe, ok := errors.AsType[*fs.PathError](err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		try = "check the path; it is relative to the current directory"
	case errors.Is(err, fs.ErrPermission):
		try = "give this user permission to read it"
	case ok && pe.Op == "read":
		try = "name a file; - reads standard input"
	}
	text := err.Error()
	if ok {
		text = pe.Error() // without the layers that it came through
	}
	return &cli.Error{What: "cannot read " + what + ": " + text, Try: try, Err: err}
}
