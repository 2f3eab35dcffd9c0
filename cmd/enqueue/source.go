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

// source reads the file of a batch and counts its bytes. When the command is interrupted or end is called,
// Read fails, even where reading the file blocks, as on a terminal.
type source struct {
	*io.PipeReader
	size int64        // 0 when unknown
	read atomic.Int64 // bytes so far
}

// openSource opens the file at path, or standard input for "-".
func openSource(c *cobra.Command, path string) (*source, error) {
	input, closeInput := c.InOrStdin(), func() error { return nil }
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, explainFile("the tasks", err)
		}
		input, closeInput = file, file.Close
	}
	s := &source{}
	if file, ok := input.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			s.size = info.Size()
		}
	}
	out, in := io.Pipe()
	s.PipeReader = out
	context.AfterFunc(c.Context(), s.end)
	go func() { // it may be left behind in a read that never ends; the program ends then
		_, err := io.Copy(in, io.TeeReader(input, s))
		_ = in.CloseWithError(err)
		_ = closeInput() // it was only read
	}()
	return s, nil
}

// Write counts what was read.
func (s *source) Write(p []byte) (int, error) {
	s.read.Add(int64(len(p)))
	return len(p), nil
}

// end stops the reading.
func (s *source) end() { _ = s.CloseWithError(context.Canceled) }

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
