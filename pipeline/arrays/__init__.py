"""Arrays of any library: which namespace they belong to, and the few functions the standard lacks.

Code asks an array for its namespace (``xp = namespace(x)``) and never asks for a device. This is
the only package that knows cupy.
"""

from pipeline.arrays.bits import KEY_BITS as KEY_BITS
from pipeline.arrays.bits import bit_lengths as bit_lengths
from pipeline.arrays.counting import OutsideClassError as OutsideClassError
from pipeline.arrays.counting import among as among
from pipeline.arrays.counting import count_margins as count_margins
from pipeline.arrays.counting import count_pairs as count_pairs
from pipeline.arrays.counting import counting_threads as counting_threads
from pipeline.arrays.counting import each_part as each_part
from pipeline.arrays.counting import several_threads as several_threads
from pipeline.arrays.kernels import Kernel as Kernel
from pipeline.arrays.kernels import add_into as add_into
from pipeline.arrays.kernels import add_rows_into as add_rows_into
from pipeline.arrays.kernels import clear_at as clear_at
from pipeline.arrays.kernels import scatter_rows as scatter_rows
from pipeline.arrays.kernels import solve_lower as solve_lower
from pipeline.arrays.kernels import sort_in_place as sort_in_place
from pipeline.arrays.kernels import sort_keys as sort_keys
from pipeline.arrays.kernels import subtract_into as subtract_into
from pipeline.arrays.kernels import syrk_into as syrk_into
from pipeline.arrays.kernels import top_k as top_k
from pipeline.arrays.libraries import HOST as HOST
from pipeline.arrays.libraries import Array as Array
from pipeline.arrays.libraries import Place as Place
from pipeline.arrays.libraries import answers as answers
from pipeline.arrays.libraries import device_of as device_of
from pipeline.arrays.libraries import gpu_place as gpu_place
from pipeline.arrays.libraries import is_array as is_array
from pipeline.arrays.libraries import itemsize as itemsize
from pipeline.arrays.libraries import library as library
from pipeline.arrays.libraries import like as like
from pipeline.arrays.libraries import map_arrays as map_arrays
from pipeline.arrays.libraries import namespace as namespace
from pipeline.arrays.libraries import nbytes as nbytes
from pipeline.arrays.libraries import to_host as to_host
from pipeline.arrays.libraries import torch_cuda as torch_cuda
from pipeline.arrays.libraries import versions as versions
from pipeline.arrays.sums import bincount as bincount
from pipeline.arrays.sums import sum_by_id as sum_by_id
from pipeline.arrays.sums import sum_in_bins as sum_in_bins
from pipeline.arrays.sums import sum_integers_in_bins as sum_integers_in_bins
from pipeline.arrays.sums import sum_tokens as sum_tokens
from pipeline.arrays.tiles import TILE_IMAGES as TILE_IMAGES
from pipeline.arrays.tiles import TILE_ROWS as TILE_ROWS
from pipeline.arrays.tiles import by_tiles as by_tiles
from pipeline.arrays.tiles import products_nbytes as products_nbytes
from pipeline.arrays.tiles import row_products as row_products
from pipeline.arrays.tiles import tiles as tiles
