// A saga's remote steps, which do nothing: dtm calls them over HTTP.
package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

var steps atomic.Int64

func step(answer http.ResponseWriter, _ *http.Request) {
	steps.Add(1)
	fmt.Fprint(answer, "{}")
}

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	http.HandleFunc("POST /step", step)
	http.HandleFunc("POST /undo", func(answer http.ResponseWriter, _ *http.Request) {
		// No step fails, so nothing is undone.
		http.Error(answer, "an undo that was not expected", http.StatusInternalServerError)
	})
	go func() {
		fmt.Fprintln(os.Stderr, http.Serve(listener, nil))
		os.Exit(1)
	}()
	fmt.Println("ready")
	// One line in, one line out; the end of the input is the end of the service.
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		fmt.Printf("steps %d\n", steps.Load())
	}
}
