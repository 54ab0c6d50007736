// Serves fake-gcs-server, with the uploads of GCS's XML API, which it lacks: obstore writes with
// them. Everything else is fake-gcs-server's own. Checks no credentials.
package main

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

type upload struct {
	bucket, key string
	parts       map[int][]byte
}

type front struct {
	host    string
	server  http.Handler
	lock    sync.Mutex
	uploads map[string]*upload
	begun   int
}

func main() {
	address := flag.String("address", "127.0.0.1:4443", "HOST:PORT to listen on")
	data := flag.String("data", "", "directory of the objects")
	flag.Parse()
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		StorageRoot: *data, PublicHost: *address, NoListener: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := &front{host: *address, server: server.HTTPHandler(), uploads: map[string]*upload{}}
	log.Fatal(http.ListenAndServe(*address, handler))
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// It answers requests of its own host alone, and a proxy has another.
	r.Host = f.host
	escaped, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	switch escaped {
	case "storage", "upload", "download", "_internal", "batch":
		f.server.ServeHTTP(w, r)
		return
	}
	bucket, _ := url.PathUnescape(escaped)
	key, _ := url.PathUnescape(rest)
	query := r.URL.Query()
	id := query.Get("uploadId")
	switch found := f.ask("GET", "/storage/v1/b/"+url.PathEscape(bucket), nil); {
	case found.Code != http.StatusOK:
		fail(w, http.StatusNotFound, "NoSuchBucket")
	case key == "":
		f.server.ServeHTTP(w, r)
	case r.Method == "POST" && query.Has("uploads"):
		f.begin(w, bucket, key)
	case id != "" && f.upload(id) == nil:
		fail(w, http.StatusNotFound, "NoSuchUpload")
	case r.Method == "PUT" && id != "":
		f.part(w, r, f.upload(id), query.Get("partNumber"))
	case r.Method == "POST" && id != "":
		f.complete(w, r, id)
	case r.Method == "DELETE" && id != "":
		f.forget(id)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == "PUT":
		f.put(w, bucket, key, r.Header.Get("x-goog-if-generation-match"), r.Body)
	default:
		f.server.ServeHTTP(w, r)
	}
}

func (f *front) begin(w http.ResponseWriter, bucket, key string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.begun++
	id := strconv.Itoa(f.begun)
	f.uploads[id] = &upload{bucket, key, map[int][]byte{}}
	type answer struct {
		XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}
	send(w, answer{Bucket: bucket, Key: key, UploadId: id})
}

func (f *front) part(w http.ResponseWriter, r *http.Request, of *upload, number string) {
	at, err := strconv.Atoi(number)
	if err != nil {
		fail(w, http.StatusBadRequest, "InvalidArgument")
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	f.lock.Lock()
	of.parts[at] = content
	f.lock.Unlock()
	sum := md5.Sum(content)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:])+`"`)
}

func (f *front) complete(w http.ResponseWriter, r *http.Request, id string) {
	var asked struct {
		Part []struct{ PartNumber int }
	}
	if xml.NewDecoder(r.Body).Decode(&asked) != nil {
		fail(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	of, readers := f.upload(id), []io.Reader{}
	f.lock.Lock()
	for _, each := range asked.Part {
		readers = append(readers, bytes.NewReader(of.parts[each.PartNumber]))
	}
	f.lock.Unlock()
	etag, _, ok := f.store(w, of.bucket, of.key, "", io.MultiReader(readers...))
	if !ok {
		return
	}
	f.forget(id)
	type answer struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}
	send(w, answer{Bucket: of.bucket, Key: of.key, ETag: etag})
}

func (f *front) put(w http.ResponseWriter, bucket, key, generation string, body io.Reader) {
	if etag, version, ok := f.store(w, bucket, key, generation, body); ok {
		w.Header().Set("ETag", `"`+etag+`"`)
		w.Header().Set("x-goog-generation", version)
	}
}

// Store an object by the JSON API; answer the request if that fails.
func (f *front) store(
	w http.ResponseWriter, bucket, key, generation string, body io.Reader,
) (etag, version string, ok bool) {
	query := url.Values{"uploadType": {"media"}, "name": {key}}
	if generation != "" {
		query.Set("ifGenerationMatch", generation)
	}
	target := fmt.Sprintf("/upload/storage/v1/b/%s/o?%s", url.PathEscape(bucket), query.Encode())
	done := f.ask("POST", target, body)
	var stored struct{ Etag, Generation string }
	switch {
	case done.Code == http.StatusPreconditionFailed:
		fail(w, done.Code, "PreconditionFailed")
	case done.Code != http.StatusOK:
		fail(w, done.Code, "InternalError")
	case json.Unmarshal(done.Body.Bytes(), &stored) != nil:
		fail(w, http.StatusInternalServerError, "InternalError")
	default:
		return strings.Trim(stored.Etag, `"`), stored.Generation, true
	}
	return "", "", false
}

func (f *front) ask(method, target string, body io.Reader) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	f.server.ServeHTTP(answer, httptest.NewRequest(method, target, body))
	return answer
}

func (f *front) upload(id string) *upload {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.uploads[id]
}

func (f *front) forget(id string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	delete(f.uploads, id)
}

func send(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/xml")
	xml.NewEncoder(w).Encode(answer)
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}
